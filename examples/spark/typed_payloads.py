"""Turn JSON payloads into typed columns: the JSON Schema of the topic becomes the Spark schema.

A payload that does not fit, for example one from before the topic had a schema, is not lost: its
text is in the column `_corrupt_record`.
"""

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from waystation import Waystation

SIMPLE = {"string": T.StringType(), "number": T.DoubleType(), "integer": T.LongType()}
SIMPLE["boolean"] = T.BooleanType()


def spark_type(schema: dict[str, Any]) -> T.DataType:
    match schema.get("type"):
        case "object" if "properties" in schema:
            columns = schema["properties"].items()
            return T.StructType([T.StructField(name, spark_type(each)) for name, each in columns])
        case "array" if "items" in schema:
            return T.ArrayType(spark_type(schema["items"]))
        case str(name) if name in SIMPLE:
            return SIMPLE[name]
        case _:
            return T.StringType()  # Anything else remains JSON text.


with Waystation() as station:
    topic_schema = station.topics.get("orders").options.json_schema

columns = spark_type(topic_schema).add("_corrupt_record", T.StringType())

spark = SparkSession.builder.getOrCreate()
messages = spark.read.format("waystation").option("topic", "orders").load()
parsed = F.from_json(
    F.col("payload").cast("string"), columns, {"columnNameOfCorruptRecord": "_corrupt_record"}
)
orders = messages.select("id", "time", parsed.alias("order")).select("id", "time", "order.*")

orders.printSchema()
orders.where("express and array_contains(items, 'pot')").orderBy("total").show(3)
print("payloads that do not fit:", orders.where("_corrupt_record is not null").count())
