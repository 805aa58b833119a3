"""An official client of RocketMQ 5 in a process of its own, step by step: Python's unless told
otherwise (`driver.py`, node5/driver.js, go5/main.go)."""

import asyncio
import json
import os
from asyncio.subprocess import PIPE
from typing import Any

from tests.interop.toolchain import python5
from tests.waiting import until

PATIENCE_S = 60.0
STOP_S = 2.0  # push consumers of Node and Go end when their open receives do


class SdkError(AssertionError):
    """The client raised this."""


class Sdk:
    """`async with Sdk(home, *proxies) as sdk: await sdk.send(...)`: the driver's methods."""

    def __init__(self, home, *proxies, account=("", ""), launch=python5):
        self._home = home
        self._launch = launch
        self._account = account
        self.endpoints = ";".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
        self._process: Any = None
        self._turn = asyncio.Lock()

    async def __aenter__(self):
        launch = await asyncio.to_thread(self._launch)
        self._home.mkdir(parents=True, exist_ok=True)
        with await asyncio.to_thread(open, self._home / "sdk.err", "wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *launch.command,
                self.endpoints,
                *self._account,
                stdin=PIPE,
                stdout=PIPE,
                stderr=errors,
                env={**os.environ, **launch.environment, "HOME": str(self._home)},
                limit=1 << 24,
            )
        return self

    async def __aexit__(self, *_):
        if self._process.returncode is None:
            try:
                async with asyncio.timeout(STOP_S):
                    await self._ask("stop", {})
            except (TimeoutError, ValueError, ConnectionError, SdkError):
                pass  # it hangs, or has gone: it is killed now
            if self._process.returncode is None:
                self._process.kill()
        await self._process.wait()
        self._process._transport.close()

    def __getattr__(self, name):
        async def step(**arguments):
            async with asyncio.timeout(PATIENCE_S):
                return await self._ask(name, arguments)

        return step

    async def _ask(self, name, arguments):
        async with self._turn:
            self._process.stdin.write(json.dumps([name, arguments]).encode() + b"\n")
            await self._process.stdin.drain()
            answer = json.loads(await self._process.stdout.readline())
        if "error" in answer:
            raise SdkError(f"{name}: {answer['error']}")
        return answer["value"]

    async def received(self, count):
        """Receive until there are so many messages."""
        result = []

        async def enough():
            result.extend(await self.receive())
            return len(result) >= count

        await until(enough, patience_s=PATIENCE_S)
        return result

    async def heard_of(self, count):
        """Wait until the push consumer was given so many messages; return them."""
        result: list[Any] = []

        async def enough():
            result[:] = await self.heard()
            return len(result) >= count

        await until(enough, patience_s=PATIENCE_S, pause_s=0.05)
        return result
