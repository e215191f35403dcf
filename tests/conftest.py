"""What all tests run under.

Examples are the same at every run, so that a run which fails fails again; the long runs, which are to find what nobody
thought of, say `derandomize=False`. No example has a deadline: a busy machine is no defect.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")
