"""Entry point of the command `headscope`, and of `python -m headscope`."""

from headscope.interrupts import exit_on_signals


def main() -> None:
    """Run the command line. Signals are handled before slow imports."""
    exit_on_signals()
    from headscope.cli import main as run

    run()


if __name__ == "__main__":
    main()
