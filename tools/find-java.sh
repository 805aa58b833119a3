#!/usr/bin/env bash
# Print the home of a Java 17 or newer. Where there is none and we may (root on Debian or Ubuntu), install it.
set -uo pipefail

home_of() { # home_of JAVA: print its home if that java is 17 or newer
    local java=$1 version
    [ -x "$java" ] || return 1
    version=$("$java" -XshowSettings:properties -version 2>&1 |
        sed -n 's/^ *java\.specification\.version = \([0-9]*\).*/\1/p')
    [ "${version:-0}" -ge 17 ] || return 1
    "$java" -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java\.home = //p'
}

find_java() {
    local java
    for java in "${JAVA_HOME:-}/bin/java" "$(command -v java)" /usr/lib/jvm/*/bin/java \
        /opt/java/*/bin/java /Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java; do
        home_of "$java" && return 0
    done
    return 1
}

find_java && exit 0
# The default release of every Debian and Ubuntu that has Python 3.11: 17, 21 or newer.
package=default-jre-headless
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "no Java 17 or newer found: installing $package with apt-get" >&2
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$package"; } >/dev/null 2>&1
    find_java && exit 0
fi
echo "Spark needs Java 17 or newer: install it (Debian, Ubuntu: sudo apt-get install $package; macOS: brew install openjdk@17) or set JAVA_HOME" >&2
exit 1
