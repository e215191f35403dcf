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


if __name__ == "__main__":
    main()
