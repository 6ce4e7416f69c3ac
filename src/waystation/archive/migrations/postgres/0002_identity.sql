-- The name of this archive, made once: a store keeps it, and takes no other.
CREATE TABLE identity (name text NOT NULL);

INSERT INTO identity VALUES ('ar-' || left(replace(gen_random_uuid()::text, '-', ''), 16));
