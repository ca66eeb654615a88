#!/usr/bin/env bash
# Ends the cluster and removes all that up.sh left on the machine, but what build.sh made.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
[ -d "$STATE" ] || exit 0

# Processes, mounts, interfaces and routes of a node go with its process 1.
for file in "$STATE"/pid/init-* "$STATE"/pid/*; do
  if [ -e "$file" ]; then finish "$(basename "$file")"; fi
done
for link in /sys/class/net/kvasir-node-*; do
  [ ! -e "$link" ] || ip link delete "$(basename "$link")" 2>/dev/null || true
done
[ ! -e "/sys/class/net/$BRIDGE" ] || ip link delete "$BRIDGE"

without() { # FOLDER of cgroups
  [ ! -d "$1" ] || find "$1" -depth -type d -exec rmdir {} +
}
for group in "/sys/fs/cgroup/$CGROUP" /sys/fs/cgroup/*/"$CGROUP"; do
  # a killed process leaves its cgroup a moment later
  await 10 "the cgroups under $group to be empty" without "$group"
done
while IFS='=' read -r name value; do
  sysctl --quiet --write "$name=$value" || say "can't set $name back to $value"
done <"$STATE/sysctls"
# deepest first; a folder that something else uses by now stays
tac "$STATE/folders" | while read -r folder; do rmdir "$folder" 2>/dev/null || true; done
rm -rf --one-file-system "$STATE"
