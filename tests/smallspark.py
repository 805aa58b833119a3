"""Settings of a Spark for small data: nothing is compiled that is run a few times only."""

# In a JVM's environment: its quick compiler alone. The collector is that of audit.session.
JVM = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
# In the environment of a program that starts a Spark of its own.
PROGRAM = JVM | {
    "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false"
    " --conf spark.sql.codegen.wholeStage=false pyspark-shell"
}
