-- Works with programs that know 20 migrations.
--
-- A job that waits because its node was lost goes on there once the node is heard of again.
INSERT INTO job_transitions (from_state, trigger, to_state) VALUES ('QUEUED', 'REJOIN', 'RUNNING');
