-- The name of this archive, made once: a store keeps it, and takes no other.
CREATE TABLE identity (name TEXT NOT NULL) STRICT;

INSERT INTO identity VALUES ('ar-' || lower(hex(randomblob(8))));
