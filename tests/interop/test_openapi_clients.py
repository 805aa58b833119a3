"""The OpenAPI documents, as other people's tools read them: a validator, and generators whose
clients then work at a real cluster, in Python, TypeScript and Go."""

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from tests.broker.http.process import running
from tests.interop.toolchain import (
    OPENAPI,
    build_go,
    node_command,
    openapi,
    openapi_go,
    openapi_node,
)
from tests.namesrv.http.test_real_brokers import over

COMPILER_OPTIONS = ("--strict", "--target", "es2022", "--module", "nodenext", "--skipLibCheck")


async def generated(document: dict[str, Any], directory: Path, name: str) -> Path:
    """Validate the document and generate a client for Python from it; return the client's
    directory. Nothing may be left out of it."""
    tools = await asyncio.to_thread(openapi)
    file = written(document, directory, name)
    await ran_with(tools, "-m", "openapi_spec_validator", str(file))
    package = directory / f"{name}_client"
    said = await ran_with(
        tools, "-m", "openapi_python_client", "generate", "--path", str(file),
        "--output-path", str(package), "--meta", "none",
    )  # fmt: skip
    assert "WARNING" not in said and "Unable to" not in said, said
    made = {one.stem for one in (package / "api" / "default").glob("[!_]*.py")}
    assert len(made) == len(operation_names(document)), operation_names(document)
    return package


async def ran_with(tools: Path, *arguments: str) -> str:
    """Run Python with the packages in a directory."""
    search = os.pathsep.join((str(tools / "bin"), os.environ.get("PATH", "")))
    environment = {"PYTHONPATH": str(tools), "PATH": search, "NO_COLOR": "1"}
    return await ran(sys.executable, *arguments, environment=environment)


async def ran(
    *command: str, environment: dict[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Run a command; return what it said. It must succeed."""
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **(environment or {})}, cwd=cwd,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    return said


def written(document: dict[str, Any], directory: Path, name: str) -> Path:
    file = directory / f"{name}.json"
    file.write_bytes(orjson.dumps(document))
    return file


def operation_names(document: dict[str, Any]) -> set[str]:
    return {one["operationId"] for path in document["paths"].values() for one in path.values()}


async def document_at(url: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/api/v1/openapi.json") as one:
        result: dict[str, Any] = await one.json()
        return result


def lacking(document: dict[str, Any]) -> list[str]:
    """Return the operations with a successful answer that the document does not describe."""
    return [
        operation["operationId"]
        for path in document["paths"].values()
        for operation in path.values()
        for status, response in operation["responses"].items()
        if status.startswith("2") and status != "204"
        if not any(one.get("schema") for one in response.get("content", {}).values())
    ]


# ---- a driver in each language: it makes a topic, sends, finds, deletes, and prints JSON --------


async def used_in_python(document: dict[str, Any], directory: Path, url: str) -> str:
    await generated(document, directory, "cluster")
    tools = await asyncio.to_thread(openapi)
    environment = {"PYTHONPATH": os.pathsep.join((str(directory), str(tools)))}
    driver = str(OPENAPI / "python_driver.py")
    return await ran(sys.executable, driver, url, environment=environment)


async def used_in_typescript(document: dict[str, Any], directory: Path, url: str) -> str:
    modules = await asyncio.to_thread(openapi_node)
    node = str(await asyncio.to_thread(node_command))
    (directory / "node_modules").symlink_to(modules / "node_modules")
    tools = directory / "node_modules"
    shutil.copy(OPENAPI / "node" / "driver.ts", directory)
    types = directory / "cluster.d.ts"
    await ran(
        node, str(tools / "openapi-typescript" / "bin" / "cli.js"),
        str(written(document, directory, "cluster")), "--default-non-nullable=false",
        "--output", str(types),
    )  # fmt: skip
    interface = types.read_text().split("export interface operations", 1)[1]
    made = set(re.findall(r"^    (\w+): \{$", interface, re.MULTILINE))
    assert made == operation_names(document)
    compiler = str(tools / "typescript" / "bin" / "tsc")
    await ran(node, compiler, *COMPILER_OPTIONS, "driver.ts", cwd=directory)
    return await ran(node, "driver.js", url, cwd=directory)


async def used_in_go(document: dict[str, Any], directory: Path, url: str) -> str:
    generator = await asyncio.to_thread(openapi_go)
    for name in ("go.mod", "go.sum", "main.go"):
        shutil.copy(OPENAPI / "go" / name, directory)
    client = directory / "cluster" / "cluster.go"
    client.parent.mkdir()
    await ran(
        str(generator), "-generate", "types,client", "-package", "cluster", "-o", str(client),
        str(written(document, directory, "cluster")),
    )  # fmt: skip
    made = set(re.findall(r"^func \(c \*Client\) (\w+)\(", client.read_text(), re.MULTILINE))
    assert {name[0].upper() + name[1:] for name in operation_names(document)} <= made
    await asyncio.to_thread(build_go, directory / "driver", ".", directory)
    return await ran(str(directory / "driver"), url)


@pytest.mark.parametrize(
    "used",
    [
        pytest.param(used_in_python, id="python"),
        pytest.param(used_in_typescript, id="typescript"),
        pytest.param(used_in_go, id="go", marks=pytest.mark.long),  # its generator: half a minute
    ],
)
async def test_generated_openapi_client_works_at_a_cluster(
    tmp_path: Path, used: Callable[[dict[str, Any], Path, str], Awaitable[str]]
) -> None:
    async with over(tmp_path / "brokers", 1) as (call, group):
        await call.until("/cluster", lambda v: bool(v["groups"]) and v["groups"][0]["leader"])
        document = await document_at(call.url)
        assert lacking(document) == []
        directory = tmp_path / "client"
        directory.mkdir()
        said = await used(document, directory, call.url)
        seen = orjson.loads(said.splitlines()[-1])
        assert seen["leader"] in group.names
        assert (seen["made"], seen["again"], seen["gone"]) == (["ok"], "VERSION_MISMATCH", ["ok"])
        assert seen["found"] == [[seen["sent"], "hello", "t", "k"]]


@pytest.mark.asyncio
async def test_brokers_openapi_document_generates_a_complete_client(tmp_path: Path) -> None:
    with running(tmp_path) as address:
        document = await document_at(f"http://{address}")
    assert lacking(document) == []
    await generated(document, tmp_path, "broker")
