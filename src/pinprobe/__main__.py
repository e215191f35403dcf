"""`python -m pinprobe` is the command `pinprobe`."""

import sys


def main() -> None:
    """Run the command; an interrupt while it is still being loaded ends it like any other."""
    try:
        from pinprobe.cli.main import run

        run()
    except KeyboardInterrupt:
        print("pinprobe: interrupted", file=sys.stderr)
        sys.exit(3)
    finally:
        # CPython remembers an interrupt that came within an exec, such as one that makes a dataclass, until the next
        # exec: it would end by the signal, and not with our code.
        exec("")


if __name__ == "__main__":
    main()
