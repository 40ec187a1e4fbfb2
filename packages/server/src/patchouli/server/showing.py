"""`config show`: every setting and limit with its value and where the value comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from patchouli.server.settings import Setting, Settings

_ORIGIN: Final = {
    "default": "",
    "environment": "from the environment",
    "option": "from an option",
    "fixed": "fixed by the protocol",
}


def settings_document(settings: Settings) -> dict[str, Any]:
    """Return the settings for programs."""
    return {
        "settings": [
            {
                "name": row.name,
                "value": row.value,
                "source": row.source,
                "unit": row.unit or None,
                "overflow": row.overflow or None,
            }
            for row in settings.rows()
        ]
    }


def settings_lines(settings: Settings) -> list[str]:
    """Return the settings for people: a line each, and one more that says what a bound does."""
    lines: list[str] = []
    rows = settings.rows()
    width = max(len(row.name) for row in rows)
    for row in rows:
        origin = _ORIGIN[row.source]
        value = " ".join(filter(None, (_grouped(row), row.unit)))
        lines.append(f"{row.name:<{width}}  {value}" + (f"  ({origin})" if origin else ""))
        if row.overflow:
            lines.append(f"{'':<{width}}  beyond: {row.overflow}")
    return lines


def _grouped(row: Setting) -> str:
    return f"{row.value:,}".replace(",", " ") if isinstance(row.value, int) else row.value
