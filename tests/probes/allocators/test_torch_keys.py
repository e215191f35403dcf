"""The pinned keys of a torch are found in its own files, and set beside what its user has set."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinprobe.probes.allocators.torch_keys import pinned_keys, settings_with
from pinprobe.probes.allocators.torch_settings import settings_by_key
from pinprobe.probes.installed_torch import InstalledTorch, find_installed_torch

#: As CUDA's header has it: a literal in two pieces, one of another backend, and names that are no literals.
_HEADER = """
  static bool pinned_use_cuda_host_register() { return m_pinned; }
  static std::unordered_set<std::string> keys{
      "backend",
      // NOLINTBEGIN
      "pinned_use_cud"
      "a_host_register",
      "pinned_reserve_segment_size_mb",
      "not_pinned_at_all"};
"""


def torch_in(folder: Path, **libraries: bytes) -> InstalledTorch:
    (folder / "lib").mkdir()
    for name, content in libraries.items():
        (folder / "lib" / f"{name}.so").write_bytes(content)
    return InstalledTorch("2.13.0", folder)


def test_the_texts_of_the_common_library_are_keys_and_parts_of_texts_are_not(tmp_path: Path) -> None:
    content = b"\0pinned_a_mb\0x pinned_b\0pinned_c (\0\0pinned_d\0max_split_size_mb\0pinned_E\0"
    assert pinned_keys(torch_in(tmp_path, libc10=content)) == ("pinned_a_mb", "pinned_d")


def test_a_backends_header_counts_where_its_library_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "include/c10/cuda"
    folder.mkdir(parents=True)
    (folder / "CUDAAllocatorConfig.h").write_text(_HEADER, encoding="utf-8")
    torch = torch_in(tmp_path, libc10=b"\0pinned_a\0")
    assert pinned_keys(torch) == ("pinned_a",)
    (tmp_path / "lib/libc10_cuda.so").write_bytes(b"\0pinned_from_code\0")
    assert pinned_keys(torch) == (
        "pinned_a", "pinned_from_code", "pinned_reserve_segment_size_mb", "pinned_use_cuda_host_register",
    )  # fmt: skip


def test_a_torch_without_files_knows_no_key(tmp_path: Path) -> None:
    assert pinned_keys(InstalledTorch("2.13.0", tmp_path)) == ()


def test_the_installed_torch_knows_the_keys_that_it_reads() -> None:
    torch = find_installed_torch()
    if not isinstance(torch, InstalledTorch):
        pytest.skip("no torch is installed")
    keys = pinned_keys(torch)
    # As its header has them: these three are members of its common configuration since 2.13.
    header = (torch.folder / "include/c10/core/AllocatorConfig.h").read_text(encoding="utf-8")
    for name in ("pinned_use_background_threads", "pinned_max_round_threshold", "pinned_max_cached_size"):
        if f"{name}()" in header:
            assert any(key.removesuffix("_mb") == name for key in keys)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {"PYTORCH_ALLOC_CONF": "pinned_a:1"}),
        ({"PYTORCH_ALLOC_CONF": ""}, {"PYTORCH_ALLOC_CONF": "pinned_a:1"}),
        ({"PYTORCH_ALLOC_CONF": "b:2, pinned_a:9"}, {"PYTORCH_ALLOC_CONF": "b:2,pinned_a:1"}),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "c:[1:2,3:4]", "PYTORCH_ALLOC_CONF": "b:2", "HOME": "/"},
            {"PYTORCH_CUDA_ALLOC_CONF": "c:[1:2,3:4],pinned_a:1", "PYTORCH_ALLOC_CONF": "b:2,pinned_a:1"},
        ),
    ],
)
def test_a_key_is_set_beside_what_is_set_already(environment: dict[str, str], expected: dict[str, str]) -> None:
    assert settings_with(environment, "pinned_a", "1") == expected
    for settings in expected.values():
        assert settings_by_key(settings)["pinned_a"] == "1"
