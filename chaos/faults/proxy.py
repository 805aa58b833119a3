"""The proxy process of a cluster's links, which can be cut, slowed and broken.

    python -m raftmq.chaos.faults.proxy --links LINKS.json --control SOCKET

LINKS.json: [{"name", "host", "port", "target_port"}, …]. It listens at every `port` and forwards to
`target_port`; while the target does not listen, neither does the proxy, so that a dead process
refuses connections as it would without a proxy. On SIGHUP it reads the file again, and opens and
closes links.

Control over a Unix socket, with a JSON object per line and a response line each:

    {"do":"set","owner":"7","rules":[RULE, …]}   replaces the owner's rules
    {"do":"clear","owner":"7"}                   removes the owner's rules
    {"do":"reset","links":["n0>n1", …]}          resets their connections now
    {"do":"state"}                               the rules and flows

    {"ok":true, …} | {"ok":false,"error":"…"}

A request may have an "id"; its response repeats it. Owners belong to a control connection. When it
closes their rules are removed, so a dead harness leaves no cut behind. The response to `set` is
sent when the rules are in force.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import orjson
import uvloop

from .byte_stream import Pace
from .listening import Listener, listen_at, listening_ports
from .proxied_connection import SOCKET_BUFFER_BYTES, End, Pair
from .rules import Effect, Rule, RuleError, combine, from_json, to_json

LINE_BYTES_MAX = 4 << 20
CONTROLS_MAX = 32
RULES_MAX = 10_000  # in force at once, of all owners
PAIRS_MAX = 20_000  # connections per link; further connections are reset
POLL_S = 0.05  # poll interval while a target does not listen
POLL_GAP_S = 0.005  # shortest time between two looks


class ProxiedLink:
    """A link with its listener, its connections, and the rules in force."""

    def __init__(
        self, name: str, host: str, port: int, target_port: int, watch: TargetWatch
    ) -> None:
        self.name = name
        self.target = (host, target_port)
        self.effect = Effect()
        self.pace_forward, self.pace_back = Pace(), Pace()
        self.rng = random.Random(name)
        self.pairs: set[Pair] = set()
        self.bytes_forward = self.bytes_back = 0
        self.taken = 0  # connections so far
        self._target_listens = False
        self._watch = watch
        self._minding = asyncio.Lock()
        self._listener = Listener(host, port, SOCKET_BUFFER_BYTES, self._dialled)

    async def set_effect(self, effect: Effect) -> None:
        """Put these rules in force before returning. Raises OSError if it cannot listen again."""
        if effect.forward.rate != self.effect.forward.rate:
            self.pace_forward.reset()
        if effect.back.rate != self.effect.back.rate:
            self.pace_back.reset()
        self.effect = effect
        for pair in list(self.pairs):
            pair.rules_changed()
        await self.mind_listening(self._target_listens)

    async def mind_listening(self, target_listens: bool) -> None:
        """Listen if the target does. Behind a cut that is invisible, so assume that it listens."""
        self._target_listens = target_listens
        async with self._minding:
            listens = self._target_listens or not self.effect.connects
            if listens and not self.effect.refuse:
                await self._listener.open()
            else:
                self._listener.shut()

    def reset(self) -> int:
        """Reset all its connections; return how many there were."""
        result = list(self.pairs)
        for pair in result:
            pair.reset()
        return len(result)

    async def close(self) -> None:
        self._listener.close()
        pairs = list(self.pairs)
        for pair in pairs:
            pair.finish()
        for pair in pairs:
            await pair.wait_closed()

    def state(self) -> dict[str, Any]:
        return {
            "connections": len(self.pairs),
            "taken": self.taken,
            "bytes_forward": self.bytes_forward,
            "bytes_back": self.bytes_back,
            "held_bytes": sum(pair.held_bytes for pair in self.pairs),
            "listens": self._listener.is_open,
        }

    def opened(self, pair: Pair) -> None:
        self.taken += 1
        self.pairs.add(pair)
        if len(self.pairs) > PAIRS_MAX:
            pair.reset()

    def closed(self, pair: Pair) -> None:
        self.pairs.discard(pair)

    def carried(self, *, forward: bool, size_bytes: int) -> None:
        if forward:
            self.bytes_forward += size_bytes
        else:
            self.bytes_back += size_bytes

    def target_lost(self) -> None:
        self._watch.soon()

    def _dialled(self) -> End:
        return Pair(self).dialler


class TargetWatch:
    """Watches which targets listen, often while a target does not, and when an end is lost."""

    def __init__(self) -> None:
        self._wake = asyncio.Event()

    def soon(self) -> None:
        self._wake.set()

    async def run(self, links: Mapping[str, ProxiedLink]) -> None:
        while True:
            self._wake.clear()
            result = listening_ports()
            for link in list(links.values()):
                await link.mind_listening(link.target[1] in result)
            if all(link.target[1] in result for link in links.values()):
                await self._wake.wait()
                await asyncio.sleep(POLL_GAP_S)
                continue
            try:
                async with asyncio.timeout(POLL_S):
                    await self._wake.wait()
            except TimeoutError:
                pass  # the next check is due, the usual case
            await asyncio.sleep(POLL_GAP_S)


class Proxy:
    def __init__(self, links: Sequence[Mapping[str, Any]]) -> None:
        self._looking = TargetWatch()
        self.links = {entry["name"]: self._link(entry) for entry in links}
        self._rules: dict[tuple[int, str], list[Rule]] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start. Raises OSError if a port is taken."""
        for link in self.links.values():
            await link.mind_listening(True)  # bind all of them now, or fail
        self._task = asyncio.create_task(self._looking.run(self.links))

    async def change(self, links: Sequence[Mapping[str, Any]]) -> None:
        """Open the links that are new here, and close those that are not listed. Raises OSError if
        a port is taken."""
        for name in self.links.keys() - {entry["name"] for entry in links}:
            for owner, rules in self._rules.items():
                self._rules[owner] = [rule for rule in rules if rule.link != name]
            await self.links.pop(name).close()
        for entry in links:
            if entry["name"] not in self.links:
                link = self._link(entry)
                await link.mind_listening(True)
                self.links[link.name] = link
        self._looking.soon()

    def _link(self, entry: Mapping[str, Any]) -> ProxiedLink:
        return ProxiedLink(
            entry["name"], entry["host"], entry["port"], entry["target_port"], self._looking
        )

    async def failure_or(self, signalled: asyncio.Queue[int]) -> int:
        """Return the next signal. Raises OSError if the targets cannot be watched."""
        assert self._task is not None, "not started"
        number = asyncio.create_task(signalled.get())
        await asyncio.wait({number, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            number.cancel()
            self._task.result()
        return await number

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._rules.clear()
        for link in self.links.values():
            await link.close()

    async def set(self, control: int, owner: str, rules: Sequence[Rule]) -> None:
        """Replace the owner's rules by `rules`. Raises RuleError, OSError."""
        for rule in rules:
            if rule.link not in self.links:
                raise RuleError(f"no link {rule.link!r}; there are {', '.join(self.links)}")
        key = (control, owner)
        others = sum(len(held) for other, held in self._rules.items() if other != key)
        if others + len(rules) > RULES_MAX:
            raise RuleError(f"more than {RULES_MAX} rules at once")
        touched = {rule.link for rule in (*rules, *self._rules.pop(key, ()))}
        if rules:
            self._rules[key] = list(rules)
        for name in touched:
            held = (rule for rules in self._rules.values() for rule in rules)
            await self.links[name].set_effect(combine(r for r in held if r.link == name))

    async def forget(self, control: int) -> None:
        """Drop the rules of all owners of a control connection that is gone."""
        for key in [key for key in self._rules if key[0] == control]:
            await self.set(control, key[1], ())

    def reset(self, names: Sequence[str]) -> int:
        """Reset the connections of these links; return how many. Raises RuleError."""
        for name in names:
            if name not in self.links:
                raise RuleError(f"no link {name!r}; there are {', '.join(self.links)}")
        return sum(self.links[name].reset() for name in names)

    def state(self) -> dict[str, Any]:
        result = {name: link.state() for name, link in self.links.items()}
        for rules in self._rules.values():
            for rule in rules:
                result[rule.link].setdefault("rules", []).append(to_json(rule))
        return result


class Control:
    """Answers the requests of control connections concurrently, in order per connection."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._count = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._serving) >= CONTROLS_MAX:
            writer.close()
            return
        self._serving[task] = writer
        self._count += 1
        number = self._count
        try:
            while line := await reader.readline():
                answer = await self._answer(number, line)
                writer.write(orjson.dumps(answer) + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):  # gone, or an endless line
            pass
        finally:
            del self._serving[task]
            await self._proxy.forget(number)
            writer.close()

    async def stop(self) -> None:
        tasks = list(self._serving)
        for writer in self._serving.values():
            writer.transport.abort()  # its task reads an end
        if tasks:
            await asyncio.wait(tasks)

    async def _answer(self, number: int, line: bytes) -> dict[str, Any]:
        name: Any = None
        try:
            request = orjson.loads(line)
            name = request.get("id")
            return {"id": name, "ok": True, **await self._do(number, request)}
        except (OSError, ValueError) as error:
            return {"id": name, "ok": False, "error": str(error)}
        except (KeyError, TypeError, AttributeError) as error:
            return {"id": name, "ok": False, "error": f"not a request: {error!r}"}

    async def _do(self, number: int, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the response's fields besides "ok". `_answer` describes the exceptions."""
        do = request["do"]
        if do == "set":
            rules = [from_json(rule) for rule in request["rules"]]
            await self._proxy.set(number, str(request["owner"]), rules)
            return {}
        if do == "clear":
            await self._proxy.set(number, str(request["owner"]), ())
            return {}
        if do == "reset":
            return {"connections": self._proxy.reset(request["links"])}
        if do == "state":
            return {"links": self._proxy.state()}
        raise ValueError(f"unknown request {do!r}")


async def run(path: Path, control: Path) -> None:
    """Proxy the links in the file `path` until SIGTERM or SIGINT. Raises OSError if a port is
    taken."""
    loop = asyncio.get_running_loop()
    signalled: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, signalled.put_nowait, number)
    proxy = Proxy(_read(path))
    controls = Control(proxy)
    await proxy.start()
    server = await asyncio.start_unix_server(
        controls.serve, sock=listen_at(control), limit=LINE_BYTES_MAX
    )
    print(f"proxy of {len(proxy.links)} links", flush=True)
    try:
        while await proxy.failure_or(signalled) == signal.SIGHUP:
            await proxy.change(_read(path))
    finally:
        server.close()
        # before the controls' rules are removed, so that held bytes stay undelivered
        await proxy.stop()
        await controls.stop()


def _read(path: Path) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = orjson.loads(path.read_bytes())
    return result


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--links", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--control", required=True, type=click.Path(path_type=Path))
def main(links: Path, control: Path) -> None:
    """Carry a cluster's traffic, and break it on request."""
    try:
        uvloop.run(run(links, control))
    except OSError as error:
        sys.exit(f"proxy: {error}")


if __name__ == "__main__":
    main()
