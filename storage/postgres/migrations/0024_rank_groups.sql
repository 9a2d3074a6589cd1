-- Works with programs that know 21 migrations.
--
-- They place the ranks of a group on any nodes, which costs time and no bit.
--
-- The scheduler keeps ranks that share shards on one node where it can. `group_ranks`: so many neighbours do
-- (parallel.layout.tensor). 1: none, or not known, of a server of before, which also loses it of a job that ends there and
-- is resumed.
ALTER TABLE jobs ADD COLUMN group_ranks integer NOT NULL DEFAULT 1 CHECK (group_ranks >= 1);
ALTER TABLE ended_jobs ADD COLUMN group_ranks integer NOT NULL DEFAULT 1;
