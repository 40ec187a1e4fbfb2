"""`patchouli-db`: the commands.

Exit codes: 0 success, 1 failure with one message on standard error, 2 wrong use. Every command
takes its defaults from the home, `PATCHOULI_HOME` or `~/.patchouli`. With `--json` standard output
is JSON; that of `status`, `checkpoint` and `stop` is so too where it is no terminal. Commands load
what they need when they run, because most of them need little.
"""

# Typer reads the annotations of commands at run time.
# ruff: noqa: PLC0415 -- imports inside commands keep the others fast, see above
# ruff: noqa: FBT002 -- typer makes options of parameters and calls by keyword

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final, Optional

import typer
from patchouli.server.keepers import artifacts_app, export
from patchouli.server.logs import Level
from patchouli.server.options import (
    ArtifactsOption,
    ConfigOption,
    EndpointOption,
    JsonOption,
    ProvidersOption,
    TimeoutOption,
)
from patchouli.server.saying import failures, print_json, time_text, wants_json
from patchouli.server.settings import CommandError, EmptyOptionError, Settings, resolve

app: Final = typer.Typer(
    name="patchouli-db",
    help="Patchouli: a memory and knowledge hub for agent harnesses.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
config_app: Final = typer.Typer(
    help="Check and show the configuration.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(config_app, name="config")
app.add_typer(artifacts_app, name="artifacts")
app.command()(export)

WAIT_SECONDS: Final = 30.0


def run() -> None:
    """Run the command that the process was started with, and exit with its code."""
    try:
        code = app(
            args=_with_wait_value(sys.argv[1:]), prog_name="patchouli-db", standalone_mode=False
        )
    except typer.TyperException as error:
        wrong: Any = error  # its subclasses, which have a context and `show`, are private to typer
        if wrong.ctx is None:  # else it shows the usage itself
            sys.stderr.write("Usage: patchouli-db [OPTIONS] COMMAND [ARGS]...\n")
        wrong.show()
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit(1)
    except EmptyOptionError as error:
        sys.stderr.write(f"Usage: patchouli-db [OPTIONS] COMMAND [ARGS]...\nError: {error}\n")
        sys.exit(2)
    except CommandError as error:
        sys.stderr.write(f"patchouli-db: {error}\n")
        sys.exit(1)
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _with_wait_value(arguments: list[str]) -> list[str]:
    """Give a `--wait` without seconds its default, since an option has a value or has none."""
    given: list[str] = []
    for index, argument in enumerate(arguments):
        follower = arguments[index + 1] if index + 1 < len(arguments) else ""
        if argument == "--wait" and not follower.replace(".", "", 1).isdigit():
            argument = f"--wait={WAIT_SECONDS:g}"
        given.append(argument)
    return given


def _print_version(value: bool) -> None:  # noqa: FBT001 -- typer calls it so
    if value:
        from patchouli.server.version import software_version

        typer.echo(f"patchouli-db {software_version()}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    pass


@app.command()
def init(
    root: Annotated[
        Optional[Path],  # noqa: UP045 -- typer reads this form
        typer.Option("--root", metavar="PATH", help="Home to make.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
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
    typer.echo(f"initialized Patchouli home: {settings.home}")
    typer.echo(f"policy: {settings.home / 'config.json'}")
    typer.echo(f"providers: {settings.home / 'providers.json'}")


@app.command()
def serve(
    endpoint: EndpointOption = None,
    artifacts: ArtifactsOption = None,
    providers: ProvidersOption = None,
    config: ConfigOption = None,
    node_id: Annotated[
        Optional[str],  # noqa: UP045 -- typer reads this form
        typer.Option("--node-id", metavar="NAME", help="This node in placements. [default: local]"),
    ] = None,
    cluster_id: Annotated[
        Optional[str],  # noqa: UP045 -- typer reads this form
        typer.Option(
            "--cluster-id", metavar="NAME", help="What clients are told. [default: local]"
        ),
    ] = None,
    log_level: Annotated[
        Level,
        typer.Option(
            "--log-level", help="Least that is logged. [default: info]", show_default=False
        ),
    ] = "info",
) -> None:
    """Run a daemon in the foreground.

    Without options it uses the home, and makes it if need be.
    """
    settings = resolve(
        os.environ,
        endpoint=endpoint,
        artifacts=artifacts,
        providers=providers,
        config=config,
        node_id=node_id,
        cluster_id=cluster_id,
    )
    import asyncio

    from patchouli.server.assemble import new_event_loop, serve_daemon
    from patchouli.server.logs import Log

    with failures(), asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve_daemon(settings, Log(log_level)))


@app.command()
def status(
    endpoint: EndpointOption = None, timeout: TimeoutOption = 10.0, as_json: JsonOption = False
) -> None:
    """Show how a daemon is."""
    settings = resolve(os.environ, endpoint=endpoint)
    result = _call(settings, "patchouli.control.status@1", timeout)
    if wants_json(as_json):
        print_json(result)
        return
    _print_status(settings.endpoint, result["data"])


@app.command()
def checkpoint(
    endpoint: EndpointOption = None, timeout: TimeoutOption = 10.0, as_json: JsonOption = False
) -> None:
    """Make a daemon fold its log into its database."""
    settings = resolve(os.environ, endpoint=endpoint)
    result = _call(settings, "patchouli.control.checkpoint@1", timeout)
    if wants_json(as_json):
        print_json(result)
    else:
        typer.echo(f"checkpoint completed: {settings.endpoint}")


@app.command()
def stop(
    endpoint: EndpointOption = None,
    wait: Annotated[
        Optional[float],  # noqa: UP045 -- typer reads this form
        typer.Option(
            "--wait",
            metavar="[SECONDS]",
            min=0,
            help=f"Return when the daemon has ended. [without a number: {WAIT_SECONDS:g}]",
            show_default=False,
        ),
    ] = None,
    timeout: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Ask a daemon to finish its work and to end."""
    settings = resolve(os.environ, endpoint=endpoint)
    result = _call(settings, "patchouli.control.shutdown@1", timeout)
    if wait is not None:
        from patchouli.server.caller import wait_until_gone

        wait_until_gone(settings.endpoint, wait)
    if wants_json(as_json):
        print_json(result)
    elif wait is None:
        typer.echo(f"the daemon at {settings.endpoint} is stopping")
    else:
        typer.echo(f"the daemon at {settings.endpoint} has stopped")


@config_app.command("check")
def config_check(
    file: Annotated[
        Optional[Path],  # noqa: UP045 -- typer reads this form
        typer.Argument(
            metavar="FILE", help="Policy file; without it, that of the home.", show_default=False
        ),
    ] = None,
    providers: ProvidersOption = None,
    as_json: JsonOption = False,
) -> None:
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
        typer.echo(line, err=True)
    if report.errors:
        if file is None and not settings.config.exists():
            typer.echo("`patchouli-db init` makes a home with both files", err=True)
        raise typer.Exit(1)
    if not as_json:
        typer.echo(f"valid: {file or settings.config}")


@config_app.command("show")
def config_show(endpoint: EndpointOption = None, as_json: JsonOption = False) -> None:
    """Show every setting and limit and its source."""
    settings = resolve(os.environ, endpoint=endpoint)
    from patchouli.server.showing import settings_document, settings_lines

    if as_json:
        print_json(settings_document(settings))
        return
    for line in settings_lines(settings):
        typer.echo(line)


@app.command()
def tour() -> None:
    """See the product at work on real data.

    Everything happens in a private home that is removed at the end.
    """
    from patchouli.server.tour import take_tour

    raise typer.Exit(take_tour())


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
    typer.echo(f"Patchouli daemon at {endpoint}")
    for name, value in rows.items():
        typer.echo(f"  {name:<12} {value}")
