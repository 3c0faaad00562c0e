"""The API over gRPC.

A synchronous grpc server on a unix socket, its calls handed to the event loop:
grpc.aio would fight over its poller with an asynchronous client in the same
process, and a test with `BatchServiceAsyncClient` is exactly that.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from airflow_resume_provider.testing.batch.methods import METHODS, ApiError, Method, call
from airflow_resume_provider.testing.batch.service import BatchService

_THREADS = 256  # made when needed; a call that a fault delays holds one
_MAX_MESSAGE = 64 * 1024 * 1024
_MASKS = ("x-goog-fieldmask", "x-goog-field-mask")


class GrpcApi:
    """Serves every method on a unix socket."""

    def __init__(self, service: BatchService, socket: Path) -> None:
        self._service, self._loop, self.socket = service, asyncio.get_running_loop(), socket
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="batch-grpc")
        options = [("grpc.max_receive_message_length", _MAX_MESSAGE), ("grpc.so_reuseport", 0)]
        self._server = grpc.server(self._threads, options=options)
        self._server.add_generic_rpc_handlers(self._handlers())
        self._server.add_insecure_port(f"unix:{socket}")

    def _handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        services: dict[str, dict[str, grpc.RpcMethodHandler]] = {}
        for method in METHODS:
            services.setdefault(method.service, {})[method.name] = grpc.unary_unary_rpc_method_handler(
                self._handler(method),
                request_deserializer=method.request.FromString,
                response_serializer=method.response.SerializeToString,
            )
        return tuple(grpc.method_handlers_generic_handler(name, found) for name, found in services.items())

    def _handler(self, method: Method) -> Any:
        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            metadata = {key: value for key, value in context.invocation_metadata() if key in _MASKS}
            mask = next(iter(metadata.values()), "")
            future = asyncio.run_coroutine_threadsafe(call(self._service, method, request, mask), self._loop)
            context.add_callback(future.cancel)
            try:
                return future.result()
            except ApiError as error:
                _abort(context, error)
            except CancelledError:
                context.abort(grpc.StatusCode.CANCELLED, "The call was cancelled.")

        return handle

    def start(self) -> None:
        """Begin to answer."""
        self._server.start()

    async def stop(self) -> None:
        """End open calls and stop."""
        await asyncio.to_thread(self._server.stop(0.2).wait)
        self._threads.shutdown(wait=False, cancel_futures=True)


def _abort(context: grpc.ServicerContext, error: ApiError) -> None:
    context.set_trailing_metadata((("grpc-status-details-bin", error.status().SerializeToString()),))
    context.abort(error.grpc_code, error.message)
