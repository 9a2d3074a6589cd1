chain, sequence, micros(time) AS at, principal, source, method, resource, outcome, detail, count, digest
