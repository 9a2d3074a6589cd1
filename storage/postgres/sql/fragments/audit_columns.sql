chain, sequence, micros(time) AS at, principal, credential, source, method, resource, outcome, detail, count, digest
