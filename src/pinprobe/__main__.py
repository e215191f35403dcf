"""`python -m pinprobe` is the command `pinprobe`."""

from pinprobe.cli.main import run

if __name__ == "__main__":
    run()
