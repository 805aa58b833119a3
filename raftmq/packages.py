"""Whether the packages of an extra are installed, without importing any of them."""

from __future__ import annotations

import importlib.util

# What the extra `proxy` installs beside what servers need.
PROXY_PACKAGES = ("grpc", "google.protobuf")


def missing_package(packages: tuple[str, ...]) -> str:
    """Return the first of some packages that is not installed; empty if all are."""
    for package in packages:
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            spec = None  # not even the package around it
        if spec is None:
            return package
    return ""
