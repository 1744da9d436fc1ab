"""`covey watch RUN`: the page of a run, live, on this machine alone."""

from __future__ import annotations

import argparse
import webbrowser

from covey.errors import ConfigError, DatasetError
from covey.text.foreign import show

EXAMPLES = """
examples:
  covey watch quickstart-run                 then open the address that is printed
  covey watch run-a run-b --port 9000

The page follows the run while it trains. It is reachable from this machine only; from elsewhere, forward the port:
  ssh -L 8765:127.0.0.1:8765 machine

Exit status: 0 stopped with Ctrl-C, 2 there is no record or the port is taken.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="output directory of a run, or its record folder"
    )
    parser.add_argument(
        "--port", type=int, default=8765, help="port on 127.0.0.1; 0 takes a free one (default: 8765)"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")


def run(args: argparse.Namespace) -> int:
    """Serve the page until Ctrl-C."""
    from covey.runs.report.server import ReportServer

    if not 0 <= args.port < 65536:
        raise ConfigError(f"--port is {args.port}; it is a number from 0 to 65535.")
    try:
        server = ReportServer(args.runs, args.port)
    except (FileNotFoundError, ValueError) as error:
        raise DatasetError(str(error)) from error
    except OSError as error:
        raise ConfigError(f"port {args.port} cannot be used: {error}. Choose another with --port.") from error
    show(f"{server.url}  (Ctrl-C stops)", flush=True)
    if args.open:
        webbrowser.open(server.url)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        show()
    finally:
        server.server_close()
    return 0
