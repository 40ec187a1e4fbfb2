"""`patchouli-db`: the commands.

Exit codes: 0 success, 1 failure with one message on standard error, 2 wrong use. Every command
takes its defaults from the home, `PATCHOULI_HOME` or `~/.patchouli`. With `--json` standard output
is JSON; that of `status`, `checkpoint` and `stop` is so too where it is no terminal. Commands load
what they need when they run, because most of them need little.
"""

# ruff: noqa: PLC0415 -- imports inside commands keep the others fast, see above

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from patchouli.server.keepers import add_keepers
from patchouli.server.logs import LEVELS
from patchouli.server.options import (
    PROGRAM,
    Parser,
    add_artifacts,
    add_command,
    add_config,
    add_endpoint,
    add_group,
    add_json,
    add_providers,
    add_timeout,
    add_wait,
)
from patchouli.server.saying import (
    complain,
    count_text,
    failures,
    print_json,
    say,
    time_text,
    wants_json,
)
from patchouli.server.settings import CommandError, Settings, WrongUseError, resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchouli.server.logs import Level
    from patchouli.server.options import Group

WAIT_SECONDS: Final = 30.0


def run() -> None:
    """Run the command that the process was started with, and exit with its code."""
    try:
        code = run_command(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(1)
    except CommandError as error:
        complain(f"{PROGRAM}: {error}")
        sys.exit(1)
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Return the exit code of the command that `arguments` name.

    Raises:
        SystemExit: They are wrong, or ask for help; what there is to say was said.
        CommandError: The command failed.
    """
    given = vars(new_parser().parse_args(arguments))
    parser: Parser = given.pop("parser")
    command = given.pop("command")
    if given.pop("is_version_wanted"):
        from patchouli.server.version import software_version

        say(f"{PROGRAM} {software_version()}")
        return 0
    if command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        return command(**given) or 0
    except WrongUseError as error:
        parser.error(str(error))


def new_parser() -> Parser:
    """Return the parser of all commands."""
    parser = Parser(
        prog=PROGRAM, description="Patchouli: a memory and knowledge hub for agent harnesses."
    )
    parser.add_argument(
        "--version",
        action="store_true",
        dest="is_version_wanted",
        help="print the version and exit",
    )
    group = add_group(parser)
    _add_home_commands(group)
    _add_control_commands(group)
    _add_config_commands(group)
    add_keepers(group)
    add_command(group, "tour", tour)
    return parser


def _add_home_commands(group: Group) -> None:
    making = add_command(group, "init", init)
    making.add_argument("--root", metavar="PATH", help="home to make")
    add_json(making)
    serving = add_command(group, "serve", serve)
    add_endpoint(serving)
    add_artifacts(serving)
    add_providers(serving)
    add_config(serving)
    serving.add_argument(
        "--node-id", metavar="NAME", help="this node in placements [default: local]"
    )
    serving.add_argument(
        "--cluster-id", metavar="NAME", help="what clients are told [default: local]"
    )
    serving.add_argument(
        "--log-level", choices=LEVELS, default="info", help="least that is logged [default: info]"
    )


def _add_control_commands(group: Group) -> None:
    for name, command in (
        ("status", status),
        ("checkpoint", checkpoint),
        ("compact", compact),
        ("stop", stop),
    ):
        parser = add_command(group, name, command)
        add_endpoint(parser)
        if command is stop:
            add_wait(parser, default=WAIT_SECONDS)
        add_timeout(parser)
        add_json(parser)


def _add_config_commands(group: Group) -> None:
    words = "Check and show the configuration."
    config = add_group(group.add_parser("config", help=words.rstrip("."), description=words))
    checking = add_command(config, "check", config_check)
    checking.add_argument(
        "file", metavar="FILE", nargs="?", help="policy file; without it, that of the home"
    )
    add_providers(checking)
    add_json(checking)
    showing = add_command(config, "show", config_show)
    add_endpoint(showing)
    add_json(showing)


def init(*, root: str | None, as_json: bool) -> None:
    """Make a home with a default configuration.

    What is there already is checked and stays as it is.
    """
    settings = resolve(os.environ, home=root)
    from patchouli.server.home import create_home

    with failures():
        create_home(settings.home)
    if as_json:
        print_json(
            {
                "root": str(settings.home),
                "policy": str(settings.home / "config.json"),
                "providers": str(settings.home / "providers.json"),
            }
        )
        return
    say(f"initialized Patchouli home: {settings.home}")
    say(f"policy: {settings.home / 'config.json'}")
    say(f"providers: {settings.home / 'providers.json'}")


def serve(*, log_level: Level, **options: str | None) -> None:
    """Run a daemon in the foreground.

    Without options it uses the home, and makes it if need be.
    """
    settings = resolve(os.environ, **options)
    gc.disable()  # what is loaded now stays; the daemon turns it on when it is ready
    import asyncio

    from patchouli.server.assemble import new_event_loop, serve_daemon
    from patchouli.server.logs import Log

    with failures(), asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve_daemon(settings, Log(log_level)))


def status(*, endpoint: str | None, timeout: float, as_json: bool) -> None:
    """Show how a daemon is."""
    settings = resolve(os.environ, endpoint=endpoint)
    result = _call(settings, "patchouli.control.status@1", timeout)
    if wants_json(as_json):
        print_json(result)
        return
    _print_status(settings.endpoint, result["data"])


def checkpoint(*, endpoint: str | None, timeout: float, as_json: bool) -> None:
    """Make a daemon fold its log into its database."""
    settings = resolve(os.environ, endpoint=endpoint)
    result = _call(settings, "patchouli.control.checkpoint@1", timeout)
    if wants_json(as_json):
        print_json(result)
    else:
        say(f"checkpoint completed: {settings.endpoint}")


def compact(*, endpoint: str | None, timeout: float, as_json: bool) -> None:
    """Make a daemon remove what is past its retention, all of it, now.

    It does so by itself, a little at a time. The policy says how long things are kept.
    """
    settings = resolve(os.environ, endpoint=endpoint)
    from patchouli.server.caller import compact_all
    from patchouli.server.progress import progress_bar

    with progress_bar("compacting") as progress:
        freed = compact_all(settings.endpoint, timeout_seconds=timeout, progress=progress)
    if wants_json(as_json):
        print_json(freed)
        return
    parts = [
        count_text(freed[name], name.removesuffix("s").replace("_", " "))
        for name in ("changes", "idempotency_records", "work_units", "versions")
        if freed[name]
    ]
    say(f"removed: {', '.join(parts) if parts else 'nothing; nothing is past its retention'}")


def stop(*, endpoint: str | None, wait: float | None, timeout: float, as_json: bool) -> None:
    """Ask a daemon to finish its work and to end."""
    settings = resolve(os.environ, endpoint=endpoint)
    result = _call(settings, "patchouli.control.shutdown@1", timeout)
    if wait is not None:
        from patchouli.server.caller import wait_until_gone

        wait_until_gone(settings.endpoint, wait)
    if wants_json(as_json):
        print_json(result)
    elif wait is None:
        say(f"the daemon at {settings.endpoint} is stopping")
    else:
        say(f"the daemon at {settings.endpoint} has stopped")


def config_check(*, file: str | None, providers: str | None, as_json: bool) -> int:
    """Check a policy and a provider file.

    Nothing is opened and nothing is connected to. With FILE alone, only the policy is checked.
    """
    settings = resolve(os.environ, config=file, providers=providers)
    from patchouli.server.checking import check_files

    report = check_files(
        settings.config, None if file is not None and providers is None else settings.providers
    )
    if as_json:
        print_json(report.document())
    for line in report.lines():
        complain(line)
    if report.errors:
        if file is None and not settings.config.exists():
            complain("`patchouli-db init` makes a home with both files")
        return 1
    if not as_json:
        say(f"valid: {file or settings.config}")
    return 0


def config_show(*, endpoint: str | None, as_json: bool) -> None:
    """Show every setting and limit and its source."""
    settings = resolve(os.environ, endpoint=endpoint)
    from patchouli.server.showing import settings_document, settings_lines

    if as_json:
        print_json(settings_document(settings))
        return
    for line in settings_lines(settings):
        say(line)


def tour() -> int:
    """See the product at work on real data.

    Everything happens in a private home that is removed at the end.
    """
    from patchouli.server.tour import take_tour

    return take_tour()


def _call(settings: Settings, method: str, timeout_seconds: float) -> dict[str, Any]:
    from patchouli.server.caller import Caller

    with Caller(settings.endpoint, timeout_seconds=timeout_seconds) as caller:
        return caller.call(method, {"meta": {}, "data": {}})


def _print_status(endpoint: str, data: dict[str, Any]) -> None:
    if data["recovered_after_unclean_shutdown"]:
        before = "after an unclean stop"
    else:
        before = "after a clean stop" if data["generation"] > 1 else "the first"
    rows = {
        "state": "ready" if data["ready"] else "not ready",
        "store": data["provider"],
        "run": f"{data['generation']}, {before}",
        "process": data["pid"],
        "started": time_text(data["started_at_unix_ms"]),
        "connections": data["active_connections"],
    }
    say(f"Patchouli daemon at {endpoint}")
    for name, value in rows.items():
        say(f"  {name:<12} {value}")
