"""The backend over etcd's old v2 API, for servers and scripts that have nothing newer."""
