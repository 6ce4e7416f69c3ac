"""Opens the endpoint that a subscription names."""

from __future__ import annotations

from waystation.delivery.signing import Secret
from waystation.subscriptions.definition import Subscription
from waystation.subscriptions.endpoints import channel, pipeline, pool
from waystation.subscriptions.endpoints.channel import ChannelEndpoint
from waystation.subscriptions.endpoints.http import HttpEndpoint
from waystation.subscriptions.endpoints.means import Means
from waystation.subscriptions.endpoints.pipeline import PipelineEndpoint
from waystation.subscriptions.endpoints.pool import PoolEndpoint
from waystation.subscriptions.endpoints.protocol import Endpoint


def open_endpoint(
    subscription: Subscription, secrets: tuple[Secret, ...], means: Means
) -> Endpoint:
    """The endpoint of a subscription. Nothing is asked yet: what is wrong shows when it is used."""
    if subscription.endpoint.startswith(pipeline.PREFIX):
        return PipelineEndpoint(subscription, means)
    if subscription.endpoint.startswith(channel.PREFIX):
        return ChannelEndpoint(subscription, means)
    if subscription.endpoint.startswith(pool.PREFIX):
        return PoolEndpoint(subscription, means)
    return HttpEndpoint(subscription, secrets, means)
