-- Works with programs that know 19 migrations.
--
-- A job that waits because its node was lost goes on there once the node is heard of again.
INSERT INTO job_transitions (from_state, trigger, to_state) VALUES ('QUEUED', 'REJOIN', 'RUNNING');

-- The one before asks for a migration too many: programs that know 18 go on with it.
UPDATE schema_migrations SET works_with = 18 WHERE version = 20;
