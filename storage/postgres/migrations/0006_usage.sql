-- What the GPUs of a node do, as of its last heartbeat.

ALTER TABLE nodes ADD COLUMN usage jsonb NOT NULL DEFAULT '[]';
