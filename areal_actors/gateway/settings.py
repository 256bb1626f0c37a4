"""The table `[gateway]` of a recipe.

Kept apart from the gateway so that a recipe can be read without importing it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from areal_actors.core.candidate_settings import CandidateSettings
from areal_actors.core.config import Config, NonNegativeInt, Port, PositiveFloat, PositiveInt
from areal_actors.core.feedback_settings import FeedbackSettings

TemperaturePolicy = Literal["error", "recipe", "as_asked"]

UnknownFields = Literal["list", "refuse"]


class ImageSettings(Config):
    """`[gateway.images]`: images in requests to a model with vision; see docs/vision.md."""

    max_per_call: PositiveInt = 16
    """Maximum number of images in one prompt, those of earlier turns included."""
    max_mb: PositiveInt = 8
    """Maximum size of an image file, in MiB."""
    max_megapixels: PositiveInt = 16
    """Maximum number of pixels of an image as it is sent, in millions. Larger images than the model's processor allows
    are reduced."""
    urls: Literal["refuse", "fetch"] = "refuse"
    """Images given by `http` and `https` URLs: `refuse` answers with an error; `fetch` makes the gateway load them from
    any address that it reaches, those of the machine's own network included."""
    fetch_seconds: PositiveFloat = 10.0
    """Time limit for loading an image from its URL, in seconds."""


KEEP_REASONING = "keep-reasoning"

NO_TEMPLATE = "none"

TEMPLATE_WORDS = (KEEP_REASONING, NO_TEMPLATE)
"""Values of `gateway.chat_template` that are no files."""


class GatewaySettings(Config):
    """`[gateway]`: HTTP server through which agents call the model."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Port = 0
    """Port to listen on; 0 selects a free one. With `actors.session_manager.count` above 1, the port of the first
    gateway: the others take the next ones."""
    certificate: str = ""
    """PEM file of a certificate with which the gateway encrypts; empty: plain HTTP. Agents verify it, for the host of
    `advertise` or `host`, against the CA certificates of their system or of the file in the variable `SSL_CERT_FILE`;
    see docs/scaling.md."""
    certificate_key: str = ""
    """PEM file of the key of `certificate`."""
    admin_key: str = ""
    """Key for the endpoints that start and export sessions; empty generates one for the run, in the file `admin_key` of
    its folder."""
    idle_timeout_seconds: PositiveFloat = 600.0
    """Seconds without use after which the session of an external agent is abandoned, and with it the unstarted members
    of its group; a pause of the gateway's process (SIGSTOP, a suspended machine) does not count."""
    default_consent: bool = True
    """Consent of a session whose client sends neither `consent` nor the header `x-areal-consent`: with `false` nothing
    is kept of it for training. See docs/privacy.md."""
    reservation_ttl_seconds: PositiveFloat = 60.0
    """Seconds for which a reserved slot is kept, and the place in its group of a session that was lost with its
    gateway."""
    finished_sessions_cached: NonNegativeInt = 1024
    """Number of finished sessions that can still be exported."""
    chat_template: str = ""
    """Chat template in place of the model's: the path of a Jinja file, beside the recipe or in the current directory.
    `keep-reasoning` uses the model's, and keeps earlier reasoning in prompts although the template drops it; see
    docs/chat-templates.md. `none` starts a run without a template, for agents that send plain text to `/v1/completions`
    only."""
    tool_format: str = "auto"
    """Format of tool calls: `auto` takes the first that reads back the calls that the chat template renders, `learned`
    takes the delimiters from the template, a name such as `hermes` that format; `none` refuses tools. See
    docs/chat-templates.md."""
    store_false: Literal["skip", "train"] = "skip"
    """Calls with `store: false` are recorded as context of later calls; `skip` does not train them, `train` does, for
    clients that always send it."""
    temperature_policy: TemperaturePolicy = "error"
    """Trained calls whose client sets another `temperature` than `sampling.temperature`: `error` refuses them; `recipe`
    samples them at the recipe's temperature and lists the field in the response header `x-areal-ignored`; `as_asked`
    samples them at the client's, from 0.1 to 10, and trains their tokens at that temperature. Evaluation and
    `areal-actors serve` use the client's."""
    unknown_fields: UnknownFields = "list"
    """Fields of requests, items of histories and kinds of tools that the gateway does not know: `list` leaves them out
    and lists them in the response header `x-areal-ignored` and in the log; `refuse` refuses the request by the name of
    the first. What is known to change what is sampled is refused in both, unless it has its default value."""
    recorded_baggage: tuple[str, ...] = ()
    """Names of entries of the header `baggage` that are recorded with a call beside the ids of its `traceparent` and
    `tracestate`; see docs/tracking.md. The other entries are not written, since they may be about people."""
    marks_in_text: Literal["text", "control"] = "text"
    """The text of a special token, such as `<|im_end|>`, in a message, a tool or a tool result: `text` tokenises it as
    plain text, so that control tokens come from the chat template only; `control` reads it as that token, as servers do
    that tokenise the rendered text as it is. See docs/security.md."""
    completion_seconds: PositiveFloat = 600.0
    """Maximum wait, in seconds, for the next part of a completion from an inference worker, which is all of it unless
    it is streamed; beyond it the engine has failed. Below `task.timeout_seconds`, a silent engine is reported instead
    of the waiting agent."""
    advertise: str = ""
    """Address of the gateway for agents: a host name, or `http://host:port` of a proxy. Empty uses the listening
    address, or 127.0.0.1 if it listens on every interface (`0.0.0.0`, `::`): set a host for agents on other
    machines."""
    joined: NonNegativeInt = 0
    """Number of gateways, the last of `actors.session_manager.count`, that run on other hosts, each by
    `areal-actors join --role gateway`. One that is lost is taken over. See docs/scaling.md."""
    keep_alive_seconds: PositiveFloat = 15.0
    """Seconds without an event after which a streamed answer has a sign of life: a comment, or Anthropic's `ping`. Its
    head is sent half a second after the request at the latest. Proxies cut connections on which nothing arrives."""
    head_seconds: PositiveFloat = 60.0
    """Maximum wait, in seconds, for the head of a request on an open connection, which is then closed."""
    max_body_mb: PositiveInt = 16
    """Maximum size of a request body, in MiB. JSON is decoded in one piece, which may block the gateway for 10 ms per
    MiB."""
    images: ImageSettings = ImageSettings()
    feedback: FeedbackSettings = FeedbackSettings()
    candidate: CandidateSettings = CandidateSettings()

    def with_number(self, number: int) -> GatewaySettings:
        """Returns the settings of one of several gateways: each has its own port."""
        return msgspec.structs.replace(self, port=self.port + number if self.port else 0)

    def urls(self, count: int) -> str:
        """Returns the URLs of that number of gateways with fixed ports."""
        return ", ".join(self.url(self.port + number) for number in range(count))

    def url(self, port: int) -> str:
        """Returns the URL of a gateway that listens on this port."""
        if "://" in self.advertise:
            return self.advertise.rstrip("/")
        host = self.advertise or {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        scheme = "https" if self.certificate else "http"
        return (
            f"{scheme}://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{scheme}://{host}:{port}"
        )

    def is_local(self) -> bool:
        """True if the gateway is reachable from this machine only."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")
