"""Follow each order from its message through its deliveries to its transaction, in one table.

Messages and deliveries join by `position`. A subscription with a pipeline as endpoint starts a
transaction whose external id is the delivery id of the message:
`<subscription>:<incarnation>:<storage topic>-<partition>-<offset>:<message id>`.
"""

import os

from pyspark.sql import SparkSession

from waystation.history import attach

spark = attach(
    SparkSession.builder.getOrCreate(),
    lake=os.environ.get("WAYSTATION_HISTORY_LAKE", ".waystation/lake"),
)

spark.sql("""
    create or replace temporary view lineage as
    with delivered as (
        select position, subscription, min(started_at) as first_attempt, max(attempt) as attempts,
               concat_ws(':', subscription, incarnation,
                         concat_ws('-', storage, partition, offset), message_id) as delivery_id
        from waystation.deliveries where kind = 'attempt'
        group by position, subscription, incarnation, storage, partition, offset, message_id
    ),
    paid as (
        select transaction_id, max(external_id) as delivery_id, max(pipeline) as pipeline,
               max_by(status, version) as status,
               max_by(get_json_object(output, '$.error'), version) as error, max(time) as ended
        from waystation.transactions group by transaction_id
    )
    select m.id, m.group as customer, m.time as produced, d.subscription, d.first_attempt,
           d.attempts, p.transaction_id, p.pipeline, p.status, p.error, p.ended
    from waystation.messages m
    left join delivered d using (position)
    left join paid p using (delivery_id)
    where m.topic = 'orders'
""")

spark.sql("select * from lineage where id = 'order-96'").show(vertical=True, truncate=False)
spark.sql("select status, error, count(*) as orders from lineage group by 1, 2 order by 1").show()
