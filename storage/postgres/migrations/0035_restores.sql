-- Works with programs that know 21 migrations. They do not look at it.
--
-- How often the yard was restored from a backup (storage/restore.h), and when. A server that finds another epoch than it began
-- with has to begin anew: what it remembers was forgotten.
ALTER TABLE yard ADD COLUMN epoch bigint NOT NULL DEFAULT 1, ADD COLUMN restore_time timestamptz;
