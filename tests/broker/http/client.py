"""A client of a node API, for tests: answers with their status, headers and JSON."""

from dataclasses import dataclass

import aiohttp
import orjson


@dataclass
class Answer:
    status: int
    headers: object
    body: bytes

    @property
    def json(self):
        return orjson.loads(self.body)

    @property
    def code(self):
        return self.json["code"]


class Client:
    def __init__(self, address, **headers):
        self.base = f"http://{address}"
        self.headers = headers
        self.session = aiohttp.ClientSession()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.session.close()

    async def ask(self, method, path, json=None, data=None, params=None, **headers):
        named = {name.replace("_", "-"): value for name, value in (self.headers | headers).items()}
        async with self.session.request(
            method, self.base + path, json=json, data=data, headers=named, params=params
        ) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path, **params):
        return await self.ask("GET", path, params=params)

    async def put(self, path, json, **headers):
        return await self.ask("PUT", path, json=json, **headers)

    async def post(self, path, json=None, **headers):
        return await self.ask("POST", path, json=json, **headers)

    async def delete(self, path, **headers):
        return await self.ask("DELETE", path, **headers)
