"""Files and directories by URI through pyarrow.fs (file, hdfs, s3 or s3a, gs).

Options of a URI follow a question mark, as pyarrow.fs defines them:
`s3://backups/n0?endpoint_override=minio:9000&scheme=http`. Each library searches its own sources of
credentials (for S3: environment, profile, or the machine's role).
"""

from __future__ import annotations

from pyarrow import fs

_ALIASES = {"s3a://": "s3://", "s3n://": "s3://"}  # Hadoop's names


def opened(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system and the path in it. Raises ValueError (a scheme), OSError."""
    if "://" not in uri:
        return fs.LocalFileSystem(), uri
    for alias, name in _ALIASES.items():
        if uri.startswith(alias):
            uri = name + uri.removeprefix(alias)
    system, path = fs.FileSystem.from_uri(uri)
    return system, path


def for_spark(uri: str) -> str:
    """Return the URI or path for Spark, without options, with Hadoop's name of S3."""
    head = uri.partition("?")[0] if "://" in uri else uri
    return "s3a://" + head.removeprefix("s3://") if head.startswith("s3://") else head


def below(uri: str, name: str) -> str:
    """Return the URI or path of `name` in a directory."""
    head, mark, options = uri.partition("?") if "://" in uri else (uri, "", "")
    return f"{head.rstrip('/')}/{name}{mark}{options}"


def above(uri: str, levels: int) -> str:
    """Return the URI or path of the directory that many levels up."""
    head, mark, options = uri.partition("?") if "://" in uri else (uri, "", "")
    return f"{head.rstrip('/').rsplit('/', levels)[0]}{mark}{options}"


def name_of(uri: str) -> str:
    return uri.partition("?")[0].rpartition("/")[2] if "://" in uri else uri.rpartition("/")[2]
