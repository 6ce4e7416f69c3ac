"""A body that is decoded straight into its type, strictly: "1" is no number.

Litestar decodes a body into plain Python values first and fits these into the type of the handler;
a `msgspec.Raw` field, which is kept byte for byte, does not survive that.

    @post("/…", dto=ExactBody[NewMessages], return_dto=None)
    async def publish(self, data: JSONBody[NewMessages]) -> …:
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from litestar.dto import AbstractDTO

from waystation.errors import InvalidInputError
from waystation.runtime.decoding import decode_json
from waystation.runtime.json_text import shield, too_deep

if TYPE_CHECKING:
    from litestar._openapi.schema_generation import SchemaCreator
    from litestar.dto._backend import DTOBackend
    from litestar.openapi.spec import Reference, Schema
    from litestar.typing import FieldDefinition

_T = TypeVar("_T")


class ExactBody(AbstractDTO[_T]):
    """Decodes by msgspec alone; the document tells the type as it does of any other body."""

    def decode_bytes(self, value: bytes) -> _T:
        """Return the body as the handler gets it.

        A handler passes each `msgspec.Raw` field to `unshield` of `waystation.runtime.json_text`.
        """
        try:
            # Because msgspec looks into no field of type `Raw`.
            value.decode()
        except UnicodeDecodeError as error:
            raise InvalidInputError(
                f"The body is not UTF-8: byte {error.start} is invalid."
            ) from error
        try:
            try:
                return decode_json(value, self.model_type)
            except msgspec.DecodeError:
                shielded = shield(value)
                if shielded == value:
                    raise
            return decode_json(shielded, self.model_type)
        except RecursionError as error:
            raise too_deep("body") from error
        except UnicodeDecodeError as error:
            raise InvalidInputError("The body has a lone surrogate in a name.") from error
        except msgspec.MsgspecError as error:
            raise InvalidInputError(f"The body cannot be accepted: {error}.") from error

    @classmethod
    def create_for_field_definition(
        cls,
        field_definition: FieldDefinition,
        handler_id: str,
        backend_cls: type[DTOBackend] | None = None,
    ) -> None:
        """Nothing to prepare: there is no model of the fields in between."""

    @classmethod
    def create_openapi_schema(
        cls, field_definition: FieldDefinition, handler_id: str, schema_creator: SchemaCreator
    ) -> Reference | Schema:
        """The schema of the type itself."""
        return schema_creator.for_field_definition(field_definition)

    @classmethod
    def generate_field_definitions(cls, model_type: type[Any]) -> Any:
        """No fields are copied one by one."""
        return iter(())

    @classmethod
    def detect_nested_field(cls, field_definition: FieldDefinition) -> bool:
        """No fields are copied one by one."""
        return False
