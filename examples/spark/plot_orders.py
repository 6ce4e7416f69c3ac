"""Plot orders and revenue per customer with pandas: `pip install matplotlib`.

`pyspark.pandas` has the functions of pandas and runs them on Spark. `to_pandas` fetches the result,
which is small, for the plot.
"""

import os

import matplotlib as mpl
import pyspark.pandas as ps
from pyspark.sql import SparkSession

from waystation.history import attach

mpl.use("agg")  # Draw into a file, without a window. Leave this out in a notebook.

spark = attach(
    SparkSession.builder.getOrCreate(),
    lake=os.environ.get("WAYSTATION_HISTORY_LAKE", ".waystation/lake"),
)

orders = ps.sql("""
    select group as customer, time,
           double(get_json_object(cast(payload as string), '$.total')) as total
    from waystation.messages where topic = 'orders'
""")
by_customer = orders.groupby("customer").agg(Orders=("total", "count"), Revenue=("total", "sum"))
by_customer = by_customer.sort_index()
print(by_customer.to_string())

axes = by_customer.to_pandas().plot.barh(subplots=True, legend=False)
axes[0].figure.tight_layout()
axes[0].figure.savefig("orders.png")
