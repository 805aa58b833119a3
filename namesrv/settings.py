"""The name server's configuration for remoting tools (319, 318).

Only live keys may change. A change lasts until the process ends, because the file belongs to the
operator.
"""

from __future__ import annotations

from raftmq.ops.logs import set_level
from raftmq.ops.options import ConfigError, find, parse_settings
from raftmq.ops.settings import parse_properties

from .config import OPTIONS, NameServerConfig


class Settings:
    """Reads and changes the configuration. `shown` has values that are known only at run time."""

    def __init__(self, config: NameServerConfig, shown: dict[str, str]) -> None:
        self._config = config
        self._shown = shown

    def text(self) -> str:
        values = {key: o.text(getattr(self._config, o.name)) for key, o in OPTIONS.items()}
        return "".join(f"{key}={value}\n" for key, value in sorted((values | self._shown).items()))

    def change(self, text: str) -> None:
        """Apply all properties or none. Raises ConfigError."""
        settings = parse_properties(text, "the request")
        values, _ = parse_settings(OPTIONS, settings)
        result = [find(OPTIONS, setting) for setting in settings]
        fixed = sorted(item.key for item in result if item is not None and not item.live)
        if fixed:
            raise ConfigError(f"{', '.join(fixed)}: not while the name server runs")
        for name, value in values.items():
            # The only write to the frozen object, as in broker.config.change_live.
            object.__setattr__(self._config, name, value)
        if "log_level" in values:
            set_level("root", values["log_level"])
