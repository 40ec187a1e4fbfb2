"""The commands of who keeps the files: `artifacts collect`, `artifacts check` and `export`."""

# ruff: noqa: PLC0415 -- imports inside commands keep the others fast

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from patchouli.server.options import (
    add_artifacts,
    add_command,
    add_config,
    add_group,
    add_json,
    add_providers,
)
from patchouli.server.saying import (
    complain,
    count_text,
    failures,
    print_json,
    say,
    size_text,
    time_text,
)
from patchouli.server.settings import CommandError, WrongUseError, resolve

if TYPE_CHECKING:
    from patchouli.server.options import Group


def add_keepers(group: Group) -> None:
    """Add these commands to those of `group`."""
    words = "Collect and check the bytes of artifacts."
    artifacts = add_group(group.add_parser("artifacts", help=words.rstrip("."), description=words))
    collect = add_command(artifacts, "collect", collect_artifacts)
    add_artifacts(collect)
    add_providers(collect)
    add_config(collect)
    collect.add_argument(
        "--trial",
        action="store_true",
        dest="is_trial",
        help="say what would be removed, and remove nothing",
    )
    add_json(collect)
    check = add_command(artifacts, "check", check_artifacts)
    add_artifacts(check)
    add_json(check)
    parser = add_command(group, "export", export)
    parser.add_argument("entity_type", metavar="TYPE")
    parser.add_argument("entity_id", metavar="ID")
    parser.add_argument(
        "--version", metavar="VERSION", help="a retained version [default: the only head]"
    )
    parser.add_argument(
        "--scope",
        metavar="JSON",
        help="fields of the scope [default: the only scope that has the entity]",
    )
    parser.add_argument(
        "--output",
        "-o",
        metavar="FILE",
        type=Path,
        help="where the document goes [default: standard output]",
    )
    add_providers(parser)
    add_config(parser)
    add_json(parser)


def collect_artifacts(
    *,
    artifacts: str | None,
    providers: str | None,
    config: str | None,
    is_trial: bool,
    as_json: bool,
) -> None:
    """Remove the bytes that no version of any entity names.

    A running daemon does so by itself; this is for one that is stopped.
    """
    settings = resolve(os.environ, artifacts=artifacts, providers=providers, config=config)
    with failures():
        from patchouli.server import keeping
        from patchouli.server.progress import progress_bar

        with progress_bar("collecting") as progress:
            done = keeping.collect_artifacts(settings, is_trial=is_trial, progress=progress)
    if as_json:
        print_json(keeping.collected_document(done, is_trial=is_trial))
    elif isinstance(done, int):
        say(
            f"nothing was removed: these artifacts serve this database only since recently; "
            f"bytes that it does not name may be removed from {time_text(done)} on"
        )
    else:
        verb = "would be removed" if is_trial else "removed"
        kept = done.objects - done.removed
        say(f"{verb}: {count_text(done.removed, 'object')}, {size_text(done.removed_bytes)}")
        say(f"kept: {count_text(kept, 'object')}, {done.young} of them too young to judge")


def check_artifacts(*, artifacts: str | None, as_json: bool) -> int:
    """Read all bytes and compare them with their digests; a daemon may run.

    Exit code 1 if any are damaged. The next upload of the same content puts them right.
    """
    settings = resolve(os.environ, artifacts=artifacts)
    with failures():
        from patchouli.server import keeping
        from patchouli.server.progress import progress_bar

        with progress_bar("checking") as progress:
            done = keeping.check_artifacts(settings, progress=progress)
    if as_json:
        print_json(keeping.checked_document(done))
    else:
        say(f"checked: {count_text(done.objects, 'object')}, {size_text(done.bytes)}")
        for digest in done.damaged:
            say(f"damaged: sha256:{digest}")
        if done.damaged:
            complain(
                "restore them from a backup of the artifacts, or upload the same content again"
            )
    return 1 if done.damaged else 0


def export(
    *,
    entity_type: str,
    entity_id: str,
    version: str | None,
    scope: str | None,
    output: Path | None,
    providers: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Write the Automerge document of an entity's version, with its whole history.

    The database is read as it is; a daemon may run.
    """
    if output is None and as_json:
        raise WrongUseError("--json needs --output: standard output is for one of them")
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
        say(
            f"exported version {done.version}: {size_text(len(done.export.data))} with "
            f"{count_text(done.export.versions, 'version')} of history"
        )
        say(f"document: {output}")
