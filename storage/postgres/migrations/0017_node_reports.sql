-- What a node tells of its memory, its disk and its errors, as of its last heartbeat.
-- Works with programs that know 12 migrations.

ALTER TABLE leases ADD COLUMN health jsonb NOT NULL DEFAULT '{}';
