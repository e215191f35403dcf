"""What the README and the guides show is real: each command exists, and so does each of its options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from pinprobe.cli.main import main

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINE = re.compile(r"^\$ (pinprobe .*)$", re.MULTILINE)
INLINE = re.compile(r"`(pinprobe [^`]*)`")


def shown_commands() -> list[str]:
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    found = [command for text in texts for command in (*LINE.findall(text), *INLINE.findall(text))]
    assert len(found) > 5
    return sorted(set(found))


@pytest.mark.parametrize("shown", shown_commands())
def test_each_shown_command_is_understood(shown: str) -> None:
    words = shlex.split(shown, comments=True)[1:]
    is_name_only = not any(word.startswith("-") for word in words)
    group: click.Group = main
    context = click.Context(main, info_name="pinprobe")
    while True:
        command = group.get_command(context, words.pop(0))
        assert command is not None, shown
        context = click.Context(command, parent=context)
        if not isinstance(command, click.Group):
            break
        group = command
    if is_name_only and any(parameter.required for parameter in command.params):
        return  # a command called by its name in a sentence
    words = ["148MiB" if word == "SIZE" else word for word in words]
    command.parse_args(context, words)


@pytest.mark.parametrize("target", re.findall(r"`?make ([a-z-]+)", "\n".join(d.read_text() for d in DOCUMENTS)))
def test_each_shown_make_target_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def test_each_link_leads_to_a_file() -> None:
    for path in DOCUMENTS:
        for link in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            assert link.startswith("http") or (path.parent / link).exists(), f"{path.name}: {link}"
