"""Makes the files of the tables those of an older program, which does not note which others there
are."""

import orjson

from raftmq.broker.tables import snapshot


def without_files_noted(root):
    """Let the tables' files under `root` not say which others there are."""
    for path in (root / snapshot.DIRECTORY).iterdir():
        value = orjson.loads(path.read_bytes())
        del value[snapshot.FILES_KEY], value[snapshot.CHECKSUM_KEY]
        path.write_bytes(orjson.dumps(value))
