"""The errors of relay and deliverer; the tree that they belong to is in `errors.py`."""

from __future__ import annotations

from waystation.errors import InvalidInputError


class EnvelopeInvalidError(InvalidInputError):
    """What came to the relay is no DIDComm envelope with recipients; nothing was enqueued."""

    code = "relay.envelope-invalid"


class MessageInvalidError(InvalidInputError):
    """A message of the outbound list can never be delivered; it is a dead letter, with its text."""

    code = "deliverer.message-invalid"
