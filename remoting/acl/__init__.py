"""Access control for the remoting protocol.

`account_file` is not imported here, because clients need no YAML. Pure, without I/O.
"""

from .accounts import (
    MASKED,
    Account,
    Accounts,
    AclError,
    Permission,
    account_from_config,
    accounts_from_config,
)
from .gate import Gate
from .needs import broker_needs, name_server_needs
from .signature import Credentials

__all__ = [
    "MASKED",
    "Account",
    "Accounts",
    "AclError",
    "Credentials",
    "Gate",
    "Permission",
    "account_from_config",
    "accounts_from_config",
    "broker_needs",
    "name_server_needs",
]
