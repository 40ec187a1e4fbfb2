"""Options that several commands have, as typer reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

EndpointOption = Annotated[
    Optional[str],  # noqa: UP045 -- typer reads this form
    typer.Option("--endpoint", metavar="PATH", help="Socket of the daemon.", show_default=False),
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.001,
        max=86_400,
        show_default=False,
        help="How long to wait for an answer. [default: 10]",
    ),
]
ArtifactsOption = Annotated[
    Optional[Path],  # noqa: UP045 -- typer reads this form
    typer.Option(
        "--artifacts", metavar="PATH", help="Directory of artifact bytes.", show_default=False
    ),
]
ProvidersOption = Annotated[
    Optional[Path],  # noqa: UP045 -- typer reads this form
    typer.Option("--providers", metavar="FILE", help="Provider file.", show_default=False),
]
ConfigOption = Annotated[
    Optional[Path],  # noqa: UP045 -- typer reads this form
    typer.Option("--config", metavar="FILE", help="Policy file.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
