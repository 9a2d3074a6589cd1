-- Works with programs that know 19 migrations.
--
-- The leader asks many times a second which nodes have changed, of thousands.
CREATE INDEX nodes_changed ON nodes (changed);

-- A job's lost ranks are among its ranks, which their key finds. While there were two indexes of lost ranks, the planner
-- read one from end to end where it wanted the other.
DROP INDEX ranks_lost_of;
