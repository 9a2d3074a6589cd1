-- A job whose nodes are lost again and again pays for it, and it is not placed again where it failed last while another
-- node can take it.
-- Works with programs that know 12 migrations.

ALTER TABLE jobs ADD COLUMN losses integer NOT NULL DEFAULT 0, ADD COLUMN avoid_node text NOT NULL DEFAULT '';
ALTER TABLE ended_jobs ADD COLUMN losses integer NOT NULL DEFAULT 0, ADD COLUMN avoid_node text NOT NULL DEFAULT '';
