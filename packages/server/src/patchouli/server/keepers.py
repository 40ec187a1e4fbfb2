"""The commands of who keeps the files: `artifacts collect`, `artifacts check` and `export`."""

# Typer reads the annotations of commands at run time.
# ruff: noqa: PLC0415 -- imports inside commands keep the others fast
# ruff: noqa: FBT002 -- typer makes options of parameters and calls by keyword

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Final, Optional

import typer
from patchouli.server.options import ArtifactsOption, ConfigOption, JsonOption, ProvidersOption
from patchouli.server.saying import count_text, failures, print_json, size_text, time_text
from patchouli.server.settings import CommandError, resolve

artifacts_app: Final = typer.Typer(
    help="Collect and check the bytes of artifacts.", no_args_is_help=True, rich_markup_mode=None
)


@artifacts_app.command("collect")
def artifacts_collect(
    artifacts: ArtifactsOption = None,
    providers: ProvidersOption = None,
    config: ConfigOption = None,
    trial: Annotated[
        bool, typer.Option("--trial", help="Say what would be removed, and remove nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove the bytes that no version of any entity names.

    A running daemon does so by itself; this is for one that is stopped.
    """
    settings = resolve(os.environ, artifacts=artifacts, providers=providers, config=config)
    with failures():
        from patchouli.server.keeping import collect_artifacts, collected_document
        from patchouli.server.progress import progress_bar

        with progress_bar("collecting") as progress:
            done = collect_artifacts(settings, is_trial=trial, progress=progress)
    if as_json:
        print_json(collected_document(done, is_trial=trial))
    elif isinstance(done, int):
        typer.echo(
            f"nothing was removed: these artifacts serve this database only since recently; "
            f"bytes that it does not name may be removed from {time_text(done)} on"
        )
    else:
        verb = "would be removed" if trial else "removed"
        kept = done.objects - done.removed
        typer.echo(f"{verb}: {count_text(done.removed, 'object')}, {size_text(done.removed_bytes)}")
        typer.echo(f"kept: {count_text(kept, 'object')}, {done.young} of them too young to judge")


@artifacts_app.command("check")
def artifacts_check(artifacts: ArtifactsOption = None, as_json: JsonOption = False) -> None:
    """Read all bytes and compare them with their digests; a daemon may run.

    Exit code 1 if any are damaged. The next upload of the same content puts them right.
    """
    settings = resolve(os.environ, artifacts=artifacts)
    with failures():
        from patchouli.server.keeping import check_artifacts, checked_document
        from patchouli.server.progress import progress_bar

        with progress_bar("checking") as progress:
            done = check_artifacts(settings, progress=progress)
    if as_json:
        print_json(checked_document(done))
    else:
        typer.echo(f"checked: {count_text(done.objects, 'object')}, {size_text(done.bytes)}")
        for digest in done.damaged:
            typer.echo(f"damaged: sha256:{digest}")
        if done.damaged:
            typer.echo(
                "restore them from a backup of the artifacts, or upload the same content again",
                err=True,
            )
    if done.damaged:
        raise typer.Exit(1)


def export(
    entity_type: Annotated[str, typer.Argument(metavar="TYPE", show_default=False)],
    entity_id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    version: Annotated[
        Optional[str],  # noqa: UP045 -- typer reads this form
        typer.Option(
            "--version",
            metavar="VERSION",
            help="A retained version. [default: the only head]",
            show_default=False,
        ),
    ] = None,
    scope: Annotated[
        Optional[str],  # noqa: UP045 -- typer reads this form
        typer.Option(
            "--scope",
            metavar="JSON",
            help="Fields of the scope. [default: the only scope that has the entity]",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Optional[Path],  # noqa: UP045 -- typer reads this form
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where the document goes. [default: standard output]",
            show_default=False,
        ),
    ] = None,
    providers: ProvidersOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the Automerge document of an entity's version, with its whole history.

    The database is read as it is; a daemon may run.
    """
    if output is None and as_json:
        raise typer.BadParameter("--json needs --output: standard output is for one of them")
    if output is None and sys.stdout.isatty():
        raise CommandError(
            "a document is no text for a terminal; name a file with --output, or send it on"
        )
    settings = resolve(os.environ, providers=providers, config=config)
    with failures():
        from patchouli.server.keeping import export_version, exported_document, write_export
        from patchouli.server.progress import progress_bar

        with progress_bar("exporting") as progress:
            done = export_version(
                settings, entity_type, entity_id, scope=scope, version=version, progress=progress
            )
    if output is None:
        sys.stdout.buffer.write(done.export.data)
        sys.stdout.buffer.flush()
        return
    write_export(output, done.export.data)
    if as_json:
        print_json(exported_document(done))
    else:
        typer.echo(
            f"exported version {done.version}: {size_text(len(done.export.data))} with "
            f"{count_text(done.export.versions, 'version')} of history"
        )
        typer.echo(f"document: {output}")
