"""A session manager whose inference workers give the set answers."""

from __future__ import annotations

from support.samples import columns, letters, loaded, published, work

from areal_actors.gateway.session_manager import SessionManager
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.messages import Generate, Generated, ModelRequest, OpenSession


class Manager:
    """A session manager whose inference workers give the set answers."""

    def __init__(self, send, *, workers=("a",), context=200, settings=None, **options):
        self.send = send
        self.workers = workers
        self.actor = SessionManager(
            settings or GatewaySettings(),
            lambda folder: letters(),
            secret=b"secret",
            max_model_len=context,
            serve_http=False,
            **options,
        )
        self.asked: list[Generate] = []
        self.generate = lambda question: [Generated(columns=columns("hi\n", 3), finish_reason="stop")]

    async def __call__(self, *messages, now=0.0):
        def answer(question):
            self.asked.append(question)
            return self.generate(question)

        return await self.send(self.actor, *messages, now=now, answers={Generate: answer})

    async def ready(self):
        await self(published(9), *(loaded(worker, 0) for worker in self.workers))
        return self

    async def open(self, run=None, now=0.0, lease=10.0):
        (opened,) = await self(OpenSession(work=run or work(), lease_seconds=lease), now=now)
        assert not opened.refused
        return opened

    def recorded(self):
        """Calls that no event has yet."""
        return [call for calls in self.actor.calls.unreported._calls.values() for call in calls]

    async def chat(self, session, *texts, now=0.0, stream=False, **options):
        roles = ("user", "assistant")
        messages = tuple({"role": roles[place % 2], "content": text} for place, text in enumerate(texts))
        return await self(ModelRequest(session=session, messages=messages, sampling=options, stream=stream), now=now)
