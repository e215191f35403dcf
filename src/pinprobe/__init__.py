"""pinprobe: what page-locked host memory really costs.

The three floors, imports running downwards only:

* `pinprobe.probes` measures,
* `pinprobe.ledger` keeps what was measured,
* `pinprobe.cli` shows it.

Importing the package itself costs nothing: it loads neither torch nor any other library.
"""

__version__ = "0.1.0"
