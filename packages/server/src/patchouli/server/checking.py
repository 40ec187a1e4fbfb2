"""`config check`: everything there is to say about a policy and a provider file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from patchouli.backend import (
    PolicyWarning,
    check_policy_document,
    check_providers_document,
    load_policy,
    load_providers,
)
from patchouli.server.home import remote_provider_in_use

if TYPE_CHECKING:
    from pathlib import Path

    from patchouli.backend import ConfigurationError, LoadedProviders


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Defects that prevent a start, and what is probably not meant."""

    errors: tuple[ConfigurationError, ...]
    warnings: tuple[PolicyWarning, ...]

    def lines(self) -> list[str]:
        """Return one line for each finding, defects first."""
        return [f"error: {error}" for error in self.errors] + [
            f"warning: {warning.path}: {warning.message}" for warning in self.warnings
        ]

    def document(self) -> dict[str, Any]:
        """Return the findings for programs."""
        return {
            "valid": not self.errors,
            "errors": [
                {
                    "document": error.document,
                    "path": error.path,
                    "rule": error.rule,
                    "problem": error.problem,
                    "remedy": error.remedy,
                    "line": error.line,
                    "column": error.column,
                }
                for error in self.errors
            ],
            "warnings": [
                {"path": warning.path, "message": warning.message} for warning in self.warnings
            ],
        }


def check_files(policy_file: Path, providers_file: Path | None) -> Report:
    """Return what is wrong with a policy, and with a provider file under that policy."""
    policy = check_policy_document(policy_file)
    if policy.errors or providers_file is None:
        return Report(errors=policy.errors, warnings=policy.warnings)
    loaded = load_policy(policy_file).policy
    errors = check_providers_document(providers_file, loaded)
    if errors:
        return Report(errors=errors, warnings=policy.warnings)
    providers = load_providers(providers_file, loaded)
    return Report(
        errors=(), warnings=(*policy.warnings, *providers.warnings, *_not_served(providers))
    )


def _not_served(providers: LoadedProviders) -> list[PolicyWarning]:
    remote = remote_provider_in_use(providers)
    if remote is None:
        return []
    return [
        PolicyWarning(
            path="routing",
            message=(
                f"scopes are routed to the remote provider {remote}; the file is valid, but "
                '`serve` of this release refuses it, because it keeps every scope in "local"'
            ),
        )
    ]
