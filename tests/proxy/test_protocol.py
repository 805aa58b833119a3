"""The generated modules are what grpcio-tools makes of the .proto:

    python -m grpc_tools.protoc -I proxy/protocol --python_out=proxy/protocol \\
        --pyi_out=proxy/protocol messaging.proto
"""

import subprocess
import sys
from pathlib import Path

PROTOCOL = Path(__file__).parents[2] / "proxy" / "protocol"


def test_generated_modules_match_the_proto_file(tmp_path):
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(PROTOCOL)]
    command += [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", "messaging.proto"]
    subprocess.run(command, check=True)
    result = sorted(tmp_path.iterdir())
    assert len(result) == 2
    for made in result:
        assert (PROTOCOL / made.name).read_text() == made.read_text(), made.name
