"""The hub's proxy: the pure-Python configurable-http-proxy, with answers that stream, https, and no queue.

As it comes (0.4.0) it keeps an answer until it is whole: JupyterHub's page of a starting server and every other stream
of events show nothing, and fail after 20 s. It works on ten requests at a time, so that ten such pages stop all others.
It has no TLS, and drops a websocket's subprotocol, without which browsers end the connection.

`python -m labkit.hub.proxy` takes the options that JupyterHub gives its proxy.
"""

import argparse
import asyncio
import logging
import os
import ssl
from typing import Any

import tornado.iostream
from configurable_http_proxy.configproxy import PythonProxy
from configurable_http_proxy.handlers import ProxyHandler
from tornado.httpclient import AsyncHTTPClient, HTTPError, HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders
from tornado.web import Application

MAX_REQUESTS = 10_000  # at a time
MAX_BODY = 1 << 30  # bytes of an answer
MAX_UPLOAD = 1 << 27  # bytes of a request, which is held in memory: JupyterLab sends a larger file in pieces
OWN_HEADERS = {"transfer-encoding", "connection", "keep-alive"}  # of one connection, not of the answer


class StreamingHandler(ProxyHandler):
    """Passes an answer on as it comes."""

    def _get_proxy_request(self, url: str) -> HTTPRequest:
        """Return the request to make, with who asked by what protocol, whatever the client says of that."""
        for name in list(self.request.headers):
            if name.lower().startswith("x-forwarded-"):
                del self.request.headers[name]
        request = super()._get_proxy_request(url)
        for name, value in (("For", self.request.remote_ip), ("Proto", self.request.protocol)):
            request.headers[f"X-Forwarded-{name}"] = value
        request.request_timeout = 0  # none: a notebook may be large, and events come as long as the page is open
        request.decompress_response = False
        return request

    def compute_etag(self) -> None:
        """Return none: an answer's own is passed on."""

    async def call_proxy(self, path: str | None = None) -> None:
        """Ask the target, and pass on its answer."""
        url = await self.get_target_url(path)
        if url is None:
            return
        request = self._get_proxy_request(url)
        request.header_callback = self._pass_header
        request.streaming_callback = self._pass_chunk
        self._headers_come = HTTPHeaders()
        try:
            answer = await AsyncHTTPClient().fetch(request, raise_error=False)
        except tornado.iostream.StreamClosedError:
            return  # the client has left
        except (OSError, HTTPError) as error:
            await self._fail(error)
            return
        if answer.code == 599 and answer.error:  # the target does not answer, or broke off
            await self._fail(answer.error)
            return
        if not self._finished:
            self.finish()

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        """Return what the target has chosen, which is asked first: a browser that is told of none breaks off."""
        return self.ws_client.selected_subprotocol if self.ws_client else None

    def on_message(self, message: str | bytes) -> None:
        """Pass a message on as what it is: kernels' messages are binary."""
        if self.ws_client:
            self.proxy.update_last_activity(self.target["prefix"])
            self.ws_client.write_message(message, binary=isinstance(message, bytes))

    async def _fail(self, error: BaseException) -> None:
        if self._headers_written:
            self.request.connection.stream.close()  # so that the client knows that this is not all
        else:
            await self.handle_proxy_error(503, error)

    def _pass_header(self, line: str) -> None:
        line = line.rstrip("\r\n")
        if line.startswith("HTTP/"):
            self.set_status(int(line.split(" ", 2)[1]))
            self.clear_header("Content-Type")
            self._headers_come = HTTPHeaders()
        elif line:
            self._headers_come.parse_line(line)
        else:
            seen = set()
            for name, value in self._headers_come.get_all():
                if name.lower() not in OWN_HEADERS:
                    (self.add_header if name in seen else self.set_header)(name, value)
                    seen.add(name)

    async def _pass_chunk(self, chunk: bytes) -> None:
        self.write(chunk)
        await self.flush()  # waits for a client that reads slowly


def listen(args: argparse.Namespace) -> None:
    """Open the proxy's two servers: what users see, and the interface that JupyterHub sets routes by."""
    AsyncHTTPClient.configure(None, max_clients=MAX_REQUESTS, max_body_size=MAX_BODY)
    log = logging.getLogger("proxy")
    proxy = PythonProxy(
        {
            "auth_token": os.environ["CONFIGPROXY_AUTH_TOKEN"],
            "error_target": args.error_target,
            "default_target": None,
            "log": log,
        }
    )
    context = None
    if args.ssl_cert:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(args.ssl_cert, args.ssl_key)
    handlers: list[Any] = [(r"/(.*)", StreamingHandler, {"proxy": proxy})]
    public = Application(handlers, log_function=lambda handler: None, websocket_max_message_size=MAX_UPLOAD)
    HTTPServer(public, ssl_options=context, max_body_size=MAX_UPLOAD).listen(args.port, args.ip)
    HTTPServer(proxy.api_app).listen(args.api_port, args.api_ip)


async def main() -> None:
    """Serve until a signal ends this process."""
    parser = argparse.ArgumentParser()
    for name in ("ip", "api-ip", "error-target", "log-level", "ssl-key", "ssl-cert"):
        parser.add_argument(f"--{name}")
    for name in ("port", "api-port"):
        parser.add_argument(f"--{name}", type=int)
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="proxy: %(message)s")
    listen(args)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
