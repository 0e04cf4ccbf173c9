"""A request on its way to a server, and the answer on its way back, piece by piece (HTTP/1.1 by h11)."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import h11

from labkit_classroom.hub.streams import STALL_S, Stream

MAX_HEAD = 1 << 16
GUEST_BODY_S = 60.0  # seconds for all of a body whose size is limited
OF_A_CONNECTION = {
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}
TO_KEEP = {b"content-length", b"cookie", b"host", b"set-cookie"}  # headers that Connection cannot name as its own
WEBSOCKET = [(b"connection", b"upgrade"), (b"upgrade", b"websocket")]
Headers = list[tuple[bytes, bytes]]


class Refusal(Exception):
    """An answer of the proxy's own."""

    def __init__(self, status: int, text: str, location: str = "") -> None:
        self.status, self.text, self.location = status, text, location


class Left(EOFError):
    """The browser has gone."""


class Side:
    """One end of an exchange.

    Parameters
    ----------
    stream : Stream
        The connection.
    role : h11.SERVER or h11.CLIENT
        What the proxy is to this end.
    """

    def __init__(self, stream: Stream, role: type[h11.SERVER] | type[h11.CLIENT]) -> None:
        self.stream, self.http = stream, h11.Connection(role, max_incomplete_event_size=MAX_HEAD)

    async def next(self) -> Any:
        """Return the next part of what comes."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.stream.read())
        return event

    async def send(self, event: Any) -> None:
        """Send a part, and wait until it has gone."""
        await self.stream.write(self.http.send(event) or b"")

    @property
    def has_answered(self) -> bool:
        """Whether an answer to this end has begun."""
        return self.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE)


class Exchange:
    """One request and its answer.

    Parameters
    ----------
    browser, server : Side
        The ends between which they pass.
    translate : callable
        Is given the answer's headers, and returns them as the browser gets them.
    limit : int or None
        Bytes that the request's body can have.
    """

    def __init__(
        self, browser: Side, server: Side, translate: Callable[[Headers], Headers], limit: int | None = None
    ) -> None:
        self._browser, self._server, self._translate, self._limit = browser, server, translate, limit

    async def run(self, request: h11.Request, upgrade: bool) -> None:
        """Pass both on, until the answer is whole or one side has left."""
        if self._browser.http.they_are_waiting_for_100_continue:
            await self._browser.send(h11.InformationalResponse(status_code=100, headers=[]))
        await self._server.send(request)
        asking, answering = asyncio.create_task(self._ask(upgrade)), asyncio.create_task(self._answer())
        await _until_one_is_over(answering, asking)
        if upgrade and self._browser.http.our_state is h11.SWITCHED_PROTOCOL:
            await self._pass_on_all()

    async def _ask(self, upgrade: bool) -> None:
        """Pass the request's body on, then watch whether the browser leaves; end by an error alone."""
        try:
            async with asyncio.timeout(GUEST_BODY_S if self._limit else None):
                await self._pass_body()
        except TimeoutError as error:
            raise Refusal(408, "This took too long.") from error
        except h11.RemoteProtocolError as error:
            raise Refusal(400, "This is no request.") from error
        if not upgrade:
            if not (more := await self._browser.stream.read()):
                raise Left
            self._browser.http.receive_data(more)  # the next request, which waits
        await asyncio.Event().wait()

    async def _pass_body(self) -> None:
        size = 0
        while True:
            async with asyncio.timeout(STALL_S):
                event = await self._browser.next()
            if isinstance(event, h11.Data):
                size += len(event.data)
                if self._limit:
                    refuse_larger(size, self._limit)
            elif not isinstance(event, h11.EndOfMessage):
                raise Left
            try:
                await self._server.send(event)
            except ConnectionError:  # it has answered before it has heard all
                await asyncio.Event().wait()
            if isinstance(event, h11.EndOfMessage):
                return

    async def _answer(self) -> None:
        """Pass the answer on."""
        while not isinstance(event := await self._server.next(), h11.EndOfMessage):
            if isinstance(event, h11.InformationalResponse):
                if event.status_code == 101:
                    headers = [*self._translate(end_to_end(event.headers)), *WEBSOCKET]
                    await self._browser.send(h11.InformationalResponse(status_code=101, headers=headers))
                    return
            elif isinstance(event, h11.Response):
                headers = self._translate(end_to_end(event.headers))
                answer = h11.Response(status_code=event.status_code, reason=event.reason, headers=headers)
                await self._browser.send(answer)
            elif isinstance(event, h11.Data):
                await self._browser.send(h11.Data(data=event.data))
            else:
                raise EOFError("it has closed the connection")
        await self._browser.send(h11.EndOfMessage())

    async def _pass_on_all(self) -> None:
        """Pass a websocket's bytes on as they are, in both directions, until one side has left."""
        browser, server = self._browser, self._server
        await _until_one_is_over(
            asyncio.create_task(server.stream.pass_on(browser.stream, server.http.trailing_data[0])),
            asyncio.create_task(browser.stream.pass_on(server.stream, browser.http.trailing_data[0])),
        )


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers that are for more than one connection; a body keeps one way to say how long it is."""
    headers = list(headers)
    named = {part.strip().lower() for name, value in headers if name == b"connection" for part in value.split(b",")}
    is_chunked = any(name == b"transfer-encoding" for name, _ in headers)
    dropped = OF_A_CONNECTION | (named - TO_KEEP) | ({b"content-length"} if is_chunked else set())
    headers = [(name, value) for name, value in headers if name not in dropped]
    return [*headers, (b"transfer-encoding", b"chunked")] if is_chunked else headers


def refuse_larger(size: int, limit: int) -> None:
    """Refuse a body of more bytes than the limit."""
    if size > limit:
        raise Refusal(413, f"This is larger than {limit} bytes, and from nobody who has logged in to that server.")


async def _until_one_is_over(*tasks: asyncio.Task[None]) -> None:
    """Wait for the first task that is over, end the others, and have its error, if it has one."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        next(task for task in tasks if task.done()).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
